#include "router/models/assemble_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "experts/expert_fingerprint.h"
#include "experts/linear.h"
#include "experts/local_expert_shard.h"
#include "experts/onednn_expert_shard.h"
#include "experts/partial_expert_shard.h"

namespace moe {
namespace {

int64_t LinearBytes(const FfnLayerParts& parts) {
  int64_t sum = 0;
  for (const std::optional<Linear>* linear :
       {&parts.gate, &parts.latent_in, &parts.latent_out,
        &parts.shared_expert_gate}) {
    if (linear->has_value()) sum += (*linear)->weights_bytes();
  }
  return sum;
}

// Makes the layers of one model.
class Assembler {
 public:
  Assembler(const LoadOptions& options, Executor& executor,
            absl::FunctionRef<void(absl::Span<const StoredExpert>)> loaded)
      : options_(options), executor_(executor), loaded_(loaded) {}

  absl::StatusOr<ModelLayer> Assemble(const LayerSpec& spec,
                                      OpenedLayer opened) {
    ModelLayer layer{.index = spec.index, .ffn = nullptr};
    FfnLayerParts& parts = opened.parts;
    if (options_.part.held_experts == nullptr || !spec.rule.has_value()) {
      parts.experts = Pack(spec.experts, opened.experts);
    } else if (options_.part.shard()) {
      layer.held_experts = HeldExperts(spec, options_.part);
      for (const uint64_t print : Fingerprints(spec, Held(spec, opened))) {
        layer.fingerprints.push_back(print);
      }
      FfnLayerParts routed;
      routed.rule = parts.rule;
      parts = std::move(routed);
      parts.experts = PackHeld(spec, opened);
    } else {
      parts.leave_out_missing = options_.part.leave_out_missing;
      SpreadExperts spread;
      spread.layer = &spec;
      spread.fingerprints = Fingerprints(spec, opened.experts);
      spread.local = PackHeld(spec, opened);
      spread.local_ids = HeldExperts(spec, options_.part);
      MOE_ASSIGN_OR_RETURN(parts.experts,
                           options_.part.connect(std::move(spread)));
    }
    if (spec.shared_expert && !options_.part.shard()) {
      parts.shared_expert = Pack(*spec.shared_expert, opened.shared_expert);
    }
    weights_[WeightFormat::kF32] += LinearBytes(parts);
    layer.ffn = std::make_unique<FfnLayer>(std::move(parts));
    return layer;
  }

  const WeightsBytes& weights() const { return weights_; }

 private:
  std::unique_ptr<ExpertShard> Pack(const ExpertSetSpec& set,
                                    absl::Span<const StoredExpert> experts) {
    std::unique_ptr<ExpertShard> shard;
    if (options_.engine == ExpertEngine::kOneDnn) {
      shard = OneDnnExpertShard::Load(set.expert, experts, executor_);
    } else {
      shard =
          LocalExpertShard::Load(set.expert, experts, options_.weight_format,
                                 executor_, options_.node_threads);
    }
    weights_ += shard->weights();
    loaded_(experts);
    return shard;
  }

  std::vector<StoredExpert> Held(const LayerSpec& spec,
                                 const OpenedLayer& opened) const {
    std::vector<StoredExpert> held;
    for (const int32_t e : HeldExperts(spec, options_.part)) {
      held.push_back(opened.experts[static_cast<size_t>(e)]);
    }
    return held;
  }

  // Null if none are.
  std::unique_ptr<ExpertShard> PackHeld(const LayerSpec& spec,
                                        const OpenedLayer& opened) {
    std::vector<int32_t> ids = HeldExperts(spec, options_.part);
    if (ids.empty()) return nullptr;
    return std::make_unique<PartialExpertShard>(
        Pack(spec.experts, Held(spec, opened)), std::move(ids),
        spec.experts.num_experts);
  }

  std::vector<uint64_t> Fingerprints(const LayerSpec& spec,
                                     const std::vector<StoredExpert>& experts) {
    std::vector<uint64_t> prints(experts.size());
    executor_.ParallelFor(
        static_cast<int64_t>(experts.size()), [&](int64_t e, int) {
          prints[static_cast<size_t>(e)] = ExpertFingerprint(
              spec.experts.expert, experts[static_cast<size_t>(e)],
              options_.engine, options_.weight_format);
        });
    return prints;
  }

  const LoadOptions& options_;
  Executor& executor_;
  const absl::FunctionRef<void(absl::Span<const StoredExpert>)> loaded_;
  WeightsBytes weights_;
};

// Whether this process has any part of a layer.
bool IsHeld(const LayerSpec& layer, const ModelPart& part) {
  return !part.shard() ||
         (layer.rule.has_value() && !HeldExperts(layer, part).empty());
}

}  // namespace

absl::StatusOr<std::vector<LayerSpec>> ChooseLayers(
    std::vector<LayerSpec> all, const std::vector<int>& wanted) {
  if (wanted.empty()) return all;
  std::vector<LayerSpec> chosen;
  for (const int index : wanted) {
    const auto found = std::find_if(
        all.begin(), all.end(),
        [&](const LayerSpec& layer) { return layer.index == index; });
    if (found == all.end()) {
      return absl::NotFoundError(absl::StrCat(
          "layers: want indices of FFN layers, from ", all.front().index,
          " to ", all.back().index, "; got ", index));
    }
    chosen.push_back(*found);
  }
  std::sort(
      chosen.begin(), chosen.end(),
      [](const LayerSpec& a, const LayerSpec& b) { return a.index < b.index; });
  return chosen;
}

std::vector<int32_t> HeldExperts(const LayerSpec& layer,
                                 const ModelPart& part) {
  if (part.held_experts != nullptr) return part.held_experts(layer);
  std::vector<int32_t> all(static_cast<size_t>(layer.experts.num_experts));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

absl::StatusOr<std::unique_ptr<Model>> AssembleModel(
    ModelSpec spec, std::vector<OpenedLayer> opened, const LoadOptions& options,
    Executor& executor,
    absl::FunctionRef<void(absl::Span<const StoredExpert>)> loaded) {
  MOE_CHECK(spec.layers.size() == opened.size());
  Assembler assembler(options, executor, loaded);
  std::vector<LayerSpec> specs;
  std::vector<ModelLayer> layers;
  std::vector<std::string> doubts;
  for (size_t i = 0; i < opened.size(); ++i) {
    if (!IsHeld(spec.layers[i], options.part)) continue;
    doubts.insert(doubts.end(), opened[i].doubts.begin(),
                  opened[i].doubts.end());
    MOE_ASSIGN_OR_RETURN(
        ModelLayer layer,
        assembler.Assemble(spec.layers[i], std::move(opened[i])));
    layers.push_back(std::move(layer));
    specs.push_back(std::move(spec.layers[i]));
  }
  spec.layers = std::move(specs);
  return std::make_unique<Model>(std::move(spec), std::move(layers),
                                 assembler.weights(), std::move(doubts));
}

}  // namespace moe
