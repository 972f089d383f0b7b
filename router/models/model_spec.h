// What a checkpoint holds: its FFN layers, the shapes, the routing rules, and
// the tensors that they are made of. Nothing is read but config.json and the
// list of tensors.
//
// Thread-safe: plain values and pure functions.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "experts/base/expert_spec.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/checkpoint/open_matrix.h"
#include "experts/stored_expert.h"
#include "router/routing_rule.h"

namespace moe {

// How the experts of a set share a tensor.
enum class Stacking : uint8_t {
  kSeparate,  // a tensor each; its name has {E} for the number of the expert
  kStacked,   // one [num_experts, ...]
  kFlat,      // one [num_experts * rows, cols]
};

// Which of a tensor's outputs belong to a projection: gate_proj and up_proj are
// often stored as one.
enum class Part : uint8_t {
  kAll,
  kFirstHalf,
  kSecondHalf,
  kEven,
  kOdd,
};

// Where a projection of a set of experts lies. Its bias, if there is one, lies
// the same way in the tensor that BiasName gives.
struct ProjectionSpec {
  std::string tensor;
  Stacking stacking = Stacking::kSeparate;
  StoredOrder order = StoredOrder::kOutIn;  // of the last two dimensions
  Part part = Part::kAll;
  // kStacked: how many more than the set's experts are in the stack, at its
  // end.
  int64_t unused_experts = 0;
};

// "X.bias" for "X.weight", "X_bias" for a bare parameter "X".
std::string BiasName(absl::string_view weight);
// `pattern` with the number of an expert for {E}.
std::string ExpertTensor(absl::string_view pattern, int64_t expert);

// A set of equal experts: the routed ones of a layer, its shared one, or the
// one FFN of a dense layer.
struct ExpertSetSpec {
  ExpertSpec expert;
  int64_t num_experts = 1;
  // By Projection; gate_proj is unused in classic experts.
  std::array<ProjectionSpec, kNumProjections> projections;

  int64_t parameters() const { return num_experts * expert.parameters(); }
};

// A linear map [out, in] in tensors of its own; no bias if its name is empty.
struct LinearSpec {
  std::string weight;
  std::string bias;
  int64_t out = 0;
  int64_t in = 0;

  int64_t parameters() const { return out * in + (bias.empty() ? 0 : out); }
};

struct LayerSpec {
  int index = 0;
  int64_t d_model = 0;

  // Routed layers only.
  std::optional<RoutingRule> rule;
  LinearSpec gate;             // [num_experts, d_model]
  std::string selection_bias;  // tensor [num_experts], or empty
  // Both or none: around the routed experts, see router/ffn_layer.h.
  std::optional<LinearSpec> latent_in;
  std::optional<LinearSpec> latent_out;

  // The routed experts, or the one FFN of a dense layer.
  ExpertSetSpec experts;
  std::optional<ExpertSetSpec> shared_expert;
  // [1, d_model]: scales the shared expert's output by its sigmoid.
  std::optional<LinearSpec> shared_expert_gate;

  // All linear maps that the layer has besides the experts.
  std::vector<const LinearSpec*> Linears() const;
  // Learned parameters, router included.
  int64_t parameters() const;
};

struct ModelSpec {
  std::string family;  // model_type of config.json
  // "encoder" or "decoder" of a model that has both; else empty.
  std::string part;
  int64_t d_model = 0;
  int64_t num_layers = 0;         // with and without an FFN
  std::vector<LayerSpec> layers;  // those with one, ascending index

  int64_t parameters() const;
};

// Recognises the model by its config.json: one description, or one for the
// encoder and one for the decoder. A side of which the checkpoint has no tensor
// is left out.
//
// Errors: UNIMPLEMENTED for a model type, or a value of a config key, that is
// not supported, naming those that are; INVALID_ARGUMENT or NOT_FOUND naming a
// config key or tensor that is missing or contradicts another, wanted and got.
absl::StatusOr<std::vector<ModelSpec>> DescribeModels(
    const Checkpoint& checkpoint);

}  // namespace moe
