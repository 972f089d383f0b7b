// From the parts of layers to a model in memory, or to the part of it that this
// process holds.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "experts/stored_expert.h"
#include "router/ffn_layer.h"
#include "router/models/model.h"

namespace moe {

// A layer whose tensors have all been found and checked. The small ones have
// been read, of the experts nothing but biases.
struct OpenedLayer {
  FfnLayerParts parts;  // all but the experts
  std::vector<StoredExpert> experts;
  std::vector<StoredExpert> shared_expert;
  std::vector<std::string> doubts{};  // see Model::doubts
};

// The layers of `all` that were asked for, ascending; none asked for means all.
// Errors: NOT_FOUND naming one that there isn't.
absl::StatusOr<std::vector<LayerSpec>> ChooseLayers(
    std::vector<LayerSpec> all, const std::vector<int>& wanted);

// Which of the routed layer's experts this process packs, ascending.
std::vector<int32_t> HeldExperts(const LayerSpec& layer, const ModelPart& part);

// Packs the experts.
//
// spec:   with the layers that are wanted; those that this process has no part
//         of are taken out.
// opened: as spec.layers.
// loaded: told of the stored experts that have been packed.
// Errors: those of ModelPart::connect.
absl::StatusOr<std::unique_ptr<Model>> AssembleModel(
    ModelSpec spec, std::vector<OpenedLayer> opened, const LoadOptions& options,
    Executor& executor,
    absl::FunctionRef<void(absl::Span<const StoredExpert>)> loaded);

}  // namespace moe
