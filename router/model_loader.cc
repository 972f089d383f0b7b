// From the description of a model to the model in memory.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/open_matrix.h"
#include "experts/checkpoint/text.h"
#include "experts/onednn_expert_shard.h"
#include "router/model.h"
#include "router/open_experts.h"

namespace moe {
namespace {

absl::StatusOr<Gate> LoadLinear(const Checkpoint& checkpoint,
                                const LinearSpec& spec) {
  MOE_ASSIGN_OR_RETURN(const StoredMatrix stored,
                       OpenMatrix(checkpoint, spec.weight, spec.out, spec.in));
  AlignedBuffer<float> weights(spec.out * spec.in);
  for (int64_t row = 0; row < spec.out; ++row) {
    stored.Read(row, 0,
                absl::MakeSpan(weights.data() + row * spec.in,
                               static_cast<size_t>(spec.in)));
  }
  std::vector<float> bias;
  if (!spec.bias.empty()) {
    MOE_ASSIGN_OR_RETURN(bias, ReadVector(checkpoint, spec.bias, spec.out));
  }
  return Gate(ConstMatrix(weights.data(), spec.out, spec.in), bias);
}

// A layer whose tensors have all been found and checked. The small ones are
// read, of the experts nothing but biases.
struct OpenedLayer {
  FfnLayerParts parts;  // all but the experts
  std::vector<StoredExpert> experts;
  std::vector<StoredExpert> shared_expert;
};

absl::StatusOr<OpenedLayer> OpenLayer(const Checkpoint& checkpoint,
                                      const LayerSpec& spec) {
  OpenedLayer layer;
  FfnLayerParts& parts = layer.parts;
  parts.rule = spec.rule;
  if (spec.rule) {
    MOE_ASSIGN_OR_RETURN(parts.gate, LoadLinear(checkpoint, spec.gate));
  }
  if (!spec.selection_bias.empty()) {
    MOE_ASSIGN_OR_RETURN(
        parts.selection_bias,
        ReadVector(checkpoint, spec.selection_bias, spec.rule->num_experts));
  }
  if (spec.latent_in) {
    MOE_ASSIGN_OR_RETURN(parts.latent_in,
                         LoadLinear(checkpoint, *spec.latent_in));
    MOE_ASSIGN_OR_RETURN(parts.latent_out,
                         LoadLinear(checkpoint, *spec.latent_out));
  }
  if (spec.shared_expert_gate) {
    MOE_ASSIGN_OR_RETURN(parts.shared_expert_gate,
                         LoadLinear(checkpoint, *spec.shared_expert_gate));
  }
  MOE_ASSIGN_OR_RETURN(layer.experts, OpenExperts(checkpoint, spec.experts));
  if (spec.shared_expert) {
    MOE_ASSIGN_OR_RETURN(layer.shared_expert,
                         OpenExperts(checkpoint, *spec.shared_expert));
  }
  return layer;
}

// An error about a stored precision, with the name that the config has for it.
absl::Status WithQuantMethod(const absl::Status& status, const Config& config) {
  if (status.code() != absl::StatusCode::kUnimplemented) return status;
  const auto section = config.OptionalSection("quantization_config");
  if (!section.ok() || !*section) return status;
  const auto method = (*section)->StringOr("quant_method", "");
  if (!method.ok() || method->empty()) return status;
  return absl::UnimplementedError(
      absl::StrCat(status.message(), "; quantization_config.quant_method is ",
                   Quote(*method)));
}

// What the weights take in the checkpoint.
int64_t StoredBytes(const std::vector<StoredExpert>& experts) {
  int64_t sum = 0;
  for (const StoredExpert& expert : experts) {
    for (const StoredMatrix& matrix : expert.weights) sum += matrix.bytes();
  }
  return sum;
}

// Gives back the page cache of what has been read.
void DropStored(const Checkpoint& checkpoint,
                const std::vector<StoredExpert>& experts) {
  for (const StoredExpert& expert : experts) {
    for (const StoredMatrix& matrix : expert.weights) {
      DropPages(checkpoint, matrix);
    }
  }
}

int64_t GateBytes(const FfnLayerParts& parts) {
  int64_t sum = 0;
  for (const std::optional<Gate>* gate :
       {&parts.gate, &parts.latent_in, &parts.latent_out,
        &parts.shared_expert_gate}) {
    if (gate->has_value()) sum += (*gate)->weights_bytes();
  }
  return sum;
}

// The layers of `all` that were asked for.
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

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const Checkpoint& checkpoint, ModelSpec spec, const LoadOptions& options,
    Executor& executor, ExpertWorkspace* workspace,
    absl::FunctionRef<void(const LoadProgress&)> progress) {
  MOE_ASSIGN_OR_RETURN(spec.layers,
                       ChooseLayers(std::move(spec.layers), options.layers));

  // Every tensor is found and checked before the first expert is read: a
  // checkpoint that does not fit its config is refused at once.
  std::vector<OpenedLayer> opened;
  LoadProgress bytes;
  for (const LayerSpec& layer : spec.layers) {
    absl::StatusOr<OpenedLayer> open = OpenLayer(checkpoint, layer);
    if (!open.ok()) return WithQuantMethod(open.status(), checkpoint.config());
    bytes.total_bytes +=
        StoredBytes(open->experts) + StoredBytes(open->shared_expert);
    opened.push_back(*std::move(open));
  }

  WeightsBytes weights;
  const auto count_bytes = [&](auto shard) -> std::unique_ptr<ExpertShard> {
    weights += shard->weights();
    return shard;
  };
  const auto load = [&](const ExpertSetSpec& set,
                        const std::vector<StoredExpert>& experts) {
    std::unique_ptr<ExpertShard> shard =
        options.engine == ExpertEngine::kOneDnn
            ? count_bytes(OneDnnExpertShard::Load(set.expert, experts,
                                                  &workspace->executor()))
            : count_bytes(LocalExpertShard::Load(set.expert, experts,
                                                 options.weight_format,
                                                 executor, workspace));
    DropStored(checkpoint, experts);
    bytes.done_bytes += StoredBytes(experts);
    progress(bytes);
    return shard;
  };
  std::vector<ModelLayer> layers;
  for (size_t i = 0; i < opened.size(); ++i) {
    OpenedLayer& open = opened[i];
    const LayerSpec& layer = spec.layers[i];
    open.parts.experts = load(layer.experts, open.experts);
    if (layer.shared_expert) {
      open.parts.shared_expert = load(*layer.shared_expert, open.shared_expert);
    }
    weights[WeightFormat::kF32] += GateBytes(open.parts);
    layers.push_back(
        {layer.index, std::make_unique<FfnLayer>(std::move(open.parts))});
  }
  return std::make_unique<Model>(std::move(spec), std::move(layers), weights);
}

}  // namespace moe
