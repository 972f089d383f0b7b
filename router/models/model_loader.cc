// From the description of a model to the model in memory.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/open_matrix.h"
#include "experts/checkpoint/text.h"
#include "experts/linear.h"
#include "router/models/assemble_model.h"
#include "router/models/model.h"
#include "router/models/open_experts.h"

namespace moe {
namespace {

bool AllFinite(absl::Span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

// Adds a line if there is NaN or Inf in what decides about experts.
void Doubt(const std::string& tensor, absl::Span<const float> values,
           std::vector<std::string>& doubts) {
  if (AllFinite(values)) return;
  doubts.push_back(absl::StrCat("tensor ", Quote(tensor),
                                ": want finite numbers, got NaN or Inf; "
                                "every row will be routed by them"));
}

absl::StatusOr<Linear> LoadLinear(const Checkpoint& checkpoint,
                                  const LinearSpec& spec,
                                  std::vector<std::string>& doubts) {
  MOE_ASSIGN_OR_RETURN(const StoredMatrix stored,
                       OpenMatrix(checkpoint, spec.weight, spec.out, spec.in));
  AlignedBuffer<float> weights(spec.out * spec.in);
  for (int64_t row = 0; row < spec.out; ++row) {
    stored.Read(row, 0,
                absl::MakeSpan(weights.data() + row * spec.in,
                               static_cast<size_t>(spec.in)));
  }
  Doubt(spec.weight,
        absl::MakeConstSpan(weights.data(),
                            static_cast<size_t>(spec.out * spec.in)),
        doubts);
  std::vector<float> bias;
  if (!spec.bias.empty()) {
    MOE_ASSIGN_OR_RETURN(bias, ReadVector(checkpoint, spec.bias, spec.out));
    Doubt(spec.bias, bias, doubts);
  }
  return Linear(ConstMatrix(weights.data(), spec.out, spec.in), bias);
}

absl::StatusOr<OpenedLayer> OpenLayer(const Checkpoint& checkpoint,
                                      const LayerSpec& spec,
                                      const ModelPart& part) {
  OpenedLayer layer;
  FfnLayerParts& parts = layer.parts;
  parts.rule = spec.rule;
  if (part.shard()) {
    // Nothing but its experts: it need not have the files of the rest.
    if (!spec.rule) return layer;
    MOE_ASSIGN_OR_RETURN(layer.experts, OpenExperts(checkpoint, spec.experts,
                                                    HeldExperts(spec, part)));
    return layer;
  }
  const auto linear = [&](const LinearSpec& one) {
    return LoadLinear(checkpoint, one, layer.doubts);
  };
  if (spec.rule) {
    MOE_ASSIGN_OR_RETURN(parts.gate, linear(spec.gate));
  }
  if (!spec.selection_bias.empty()) {
    MOE_ASSIGN_OR_RETURN(
        parts.selection_bias,
        ReadVector(checkpoint, spec.selection_bias, spec.rule->num_experts));
    Doubt(spec.selection_bias, parts.selection_bias, layer.doubts);
  }
  if (spec.latent_in) {
    MOE_ASSIGN_OR_RETURN(parts.latent_in, linear(*spec.latent_in));
    MOE_ASSIGN_OR_RETURN(parts.latent_out, linear(*spec.latent_out));
  }
  if (spec.shared_expert_gate) {
    MOE_ASSIGN_OR_RETURN(parts.shared_expert_gate,
                         linear(*spec.shared_expert_gate));
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
int64_t StoredBytes(absl::Span<const StoredExpert> experts) {
  int64_t sum = 0;
  for (const StoredExpert& expert : experts) {
    for (const StoredMatrix& matrix : expert.weights) sum += matrix.bytes();
  }
  return sum;
}

// What this process packs of a layer.
int64_t BytesToLoad(const LayerSpec& layer, const OpenedLayer& opened,
                    const ModelPart& part) {
  int64_t sum = 0;
  if (!part.shard()) sum += StoredBytes(opened.shared_expert);
  if (!layer.rule.has_value()) {
    return part.shard() ? 0 : sum + StoredBytes(opened.experts);
  }
  for (const int32_t e : HeldExperts(layer, part)) {
    sum += StoredBytes(
        absl::MakeConstSpan(&opened.experts[static_cast<size_t>(e)], 1));
  }
  return sum;
}

// Gives back the page cache of what has been read.
void DropStored(const Checkpoint& checkpoint,
                absl::Span<const StoredExpert> experts) {
  for (const StoredExpert& expert : experts) {
    for (const StoredMatrix& matrix : expert.weights) {
      DropPages(checkpoint, matrix);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const Checkpoint& checkpoint, ModelSpec spec, const LoadOptions& options,
    Executor& executor, absl::FunctionRef<void(const LoadProgress&)> progress) {
  MOE_ASSIGN_OR_RETURN(spec.layers,
                       ChooseLayers(std::move(spec.layers), options.layers));

  // Every tensor is found and checked before the first expert is read: a
  // checkpoint that does not fit its config is refused at once.
  std::vector<OpenedLayer> opened;
  LoadProgress bytes;
  for (const LayerSpec& layer : spec.layers) {
    absl::StatusOr<OpenedLayer> open =
        OpenLayer(checkpoint, layer, options.part);
    if (!open.ok()) return WithQuantMethod(open.status(), checkpoint.config());
    bytes.total_bytes += BytesToLoad(layer, *open, options.part);
    opened.push_back(*std::move(open));
  }
  return AssembleModel(std::move(spec), std::move(opened), options, executor,
                       [&](absl::Span<const StoredExpert> experts) {
                         DropStored(checkpoint, experts);
                         bytes.done_bytes += StoredBytes(experts);
                         progress(bytes);
                       });
}

}  // namespace moe
