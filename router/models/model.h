// A model in memory: its FFN layers, ready to run.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "experts/base/weight_format.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/executor.h"
#include "experts/expert_engine.h"
#include "experts/expert_shard.h"
#include "experts/weights_bytes.h"
#include "router/ffn_layer.h"
#include "router/models/model_spec.h"

namespace moe {

struct ModelLayer {
  int index = 0;  // in the checkpoint
  std::unique_ptr<FfnLayer> ffn;
  // The ids of the experts that a shard holds, ascending, and the
  // fingerprint of each. Empty elsewhere.
  std::vector<int32_t> held_experts{};
  std::vector<uint64_t> fingerprints{};
};

// Thread-safe: immutable, as its layers are.
class Model {
 public:
  Model(ModelSpec spec, std::vector<ModelLayer> layers,
        const WeightsBytes& weights, std::vector<std::string> doubts = {})
      : spec_(std::move(spec)),
        layers_(std::move(layers)),
        weights_(weights),
        doubts_(std::move(doubts)) {}

  const ModelSpec& spec() const { return spec_; }
  // As spec().layers, in the same order.
  const std::vector<ModelLayer>& layers() const { return layers_; }
  // Memory of all weights.
  const WeightsBytes& weights() const { return weights_; }
  int64_t weights_bytes() const { return weights_.total(); }
  // What was odd about the checkpoint though it could be loaded, a line each:
  // routers that hold NaN or Inf, which make rows of NaN. For whoever looks
  // after the model.
  const std::vector<std::string>& doubts() const { return doubts_; }

 private:
  ModelSpec spec_;
  std::vector<ModelLayer> layers_;
  WeightsBytes weights_;
  std::vector<std::string> doubts_;
};

// The experts of a routed layer, of which some are elsewhere.
struct SpreadExperts {
  const LayerSpec* layer = nullptr;
  // One for every expert of the layer, see experts/expert_fingerprint.h.
  std::vector<uint64_t> fingerprints;
  // The experts in this process under their ids in the layer; null if none.
  std::unique_ptr<ExpertShard> local;
  std::vector<int32_t> local_ids;  // ascending
};

// What this process holds of a model. By default all of it.
//
//   whole   neither is set
//   shard   held_experts: some routed experts and nothing else of the model:
//           neither routers nor shared experts nor dense layers
//   front   both: everything else, and some or none of the routed experts
struct ModelPart {
  // The ids, ascending, of the routed experts of a layer that are held here.
  std::function<std::vector<int32_t>(const LayerSpec& layer)> held_experts;
  // Makes the experts of a layer from those here and those elsewhere.
  std::function<absl::StatusOr<std::unique_ptr<ExpertShard>>(SpreadExperts)>
      connect;

  // For a front, see FfnLayerParts.
  bool leave_out_missing = false;

  bool shard() const { return held_experts != nullptr && connect == nullptr; }
};

struct LoadOptions {
  // kOneDnn needs kAuto or kF32, and holds float32 either way.
  WeightFormat weight_format = WeightFormat::kAuto;
  ExpertEngine engine = ExpertEngine::kSimd;
  // Layers to load; empty = all.
  std::vector<int> layers;
  ModelPart part{};
  // Threads on each NUMA node of the executor that the model will run on: every
  // node gets a slice of the experts. Empty = as the one that loads it.
  std::vector<int> node_threads{};
};

// Bytes of checkpoint data used so far, and in the end.
struct LoadProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
};

// Reads and packs the weights of a model that a checkpoint holds.
//
// spec:      one of DescribeModels(checkpoint).
// executor:  does the work, while loading only.
// progress:  called after each part, by one thread at a time.
// Errors: NOT_FOUND naming a layer that there isn't; of each tensor, naming it;
// those of options.part.connect.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const Checkpoint& checkpoint, ModelSpec spec, const LoadOptions& options,
    Executor& executor, absl::FunctionRef<void(const LoadProgress&)> progress);

// A small model with made-up weights that are the same everywhere: two routed
// layers (d_model 256, d_ff 128, 16 experts, top-4) and a dense one. For trying
// the server without a checkpoint.
// Errors: as LoadModel.
absl::StatusOr<std::unique_ptr<Model>> LoadDemoModel(const LoadOptions& options,
                                                     Executor& executor);

}  // namespace moe
