// One FFN layer of a model: routed, or dense.
//
//   gate > top_k > dispatch > experts > combine (+ shared expert)
//
// With latent projections, dispatch to combine work on vectors of another,
// smaller width: latent_in(x) goes to the experts, and latent_out of their sum
// comes out. Router and shared expert see x itself.

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_failures.h"
#include "experts/expert_shard.h"
#include "experts/expert_workspace.h"
#include "experts/linear.h"
#include "router/dispatch.h"
#include "router/routing_rule.h"

namespace moe {

// The steps of a layer that are timed.
enum class Stage : uint8_t { kGate, kTopK, kDispatch, kExperts, kCombine };
inline constexpr int kNumStages = 5;

// What happened to one batch in one layer.
struct ForwardStats {
  std::array<double, kNumStages> stage_seconds{};
  int64_t nonfinite_rows = 0;  // rows of the input with NaN or Inf
};

// Expert ids and routing weights of a batch.
struct Routing {
  MatrixView<const int32_t> ids;  // [tokens, k]
  ConstMatrix weights;            // [tokens, k]
};

// What one batch in flight has of its own: scratch memory, and what a layer
// says of the batch. Shared by all layers that run one after the other.
//
// Thread-compatible: any thread, one at a time. Batches that run at the same
// time need one each, and an ExpertWorkspace each.
class LayerWorkspace {
 public:
  // `experts` must outlive this object.
  explicit LayerWorkspace(ExpertWorkspace* experts) : experts_(*experts) {}

  // After Forward or Route: the routing that was used. Valid until the next
  // call. Empty for dense layers.
  const Routing& routing() const { return routing_; }
  // After Route, or Forward without given routing: [tokens, num_experts].
  ConstMatrix router_logits() const { return logits_; }
  // After Forward: tokens that each expert got, as offsets [num_experts + 1].
  absl::Span<const int32_t> expert_offsets() const {
    return dispatch_.offsets();
  }
  // After Forward: which of the routed experts have not been run, and why.
  const ExpertFailures& failures() const { return failures_; }
  // After Forward: for each token the first of its experts that has not been
  // run, or -1; empty if all have. [tokens]
  absl::Span<const int32_t> failed_experts() const { return failed_experts_; }
  // After Forward: for each token how many of its experts were left out; empty
  // if none were. Their ids in routing() are -1. [tokens]
  absl::Span<const int32_t> left_out() const { return left_out_; }

  // When nobody waits for the results of later calls any more.
  void SetDeadline(std::chrono::steady_clock::time_point deadline) {
    deadline_ = deadline;
  }

 private:
  friend class FfnLayer;
  // Before a batch: says nothing of the last one any more.
  void Clear();

  ExpertWorkspace& experts_;
  Dispatch dispatch_;
  Dispatch shared_dispatch_;
  Routing routing_;
  ConstMatrix logits_;
  AlignedBuffer<float> logits_memory_;
  AlignedBuffer<int32_t> ids_memory_;
  AlignedBuffer<float> weights_memory_;
  AlignedBuffer<float> expert_outputs_;
  AlignedBuffer<float> latent_inputs_;
  AlignedBuffer<float> latent_outputs_;
  AlignedBuffer<float> shared_outputs_;
  AlignedBuffer<float> shared_gates_;
  AlignedBuffer<bool> finite_;
  ExpertFailures failures_;
  std::vector<int32_t> failed_experts_;
  std::vector<int32_t> left_out_;
  std::chrono::steady_clock::time_point deadline_ =
      std::chrono::steady_clock::time_point::max();
};

// The parts of a layer; see FfnLayer.
struct FfnLayerParts {
  // Routed layers have both, dense layers neither. The experts of a routed
  // layer alone have a rule and no gate: they run with given routing only.
  std::optional<RoutingRule> rule;
  std::optional<Linear> gate;
  // [num_experts] or empty; see TopK.
  std::vector<float> selection_bias;
  // Routed layers have both, [latent, d_model] and [d_model, latent], or none.
  std::optional<Linear> latent_in;
  std::optional<Linear> latent_out;
  // The routed experts, or the one dense FFN.
  std::unique_ptr<const ExpertShard> experts;
  // Visited by every token; at most one (several are stored as one wider one).
  std::unique_ptr<const ExpertShard> shared_expert;
  // [1, d_model]: the shared expert's output is scaled by sigmoid(x . gate).
  std::optional<Linear> shared_expert_gate;
  // Leave out experts that could not be run, and scale the routing weights of
  // the others so that they have the same sum. Where weights act on the input
  // of experts, and for tokens of which no expert is left, tokens fail instead,
  // as they do without this.
  bool leave_out_missing = false;
};

// Thread-safe: immutable. Several threads may run batches at the same time,
// each with a LayerWorkspace of its own.
class FfnLayer {
 public:
  // Requires: consistent parts (checked by the loader).
  explicit FfnLayer(FfnLayerParts parts);

  bool dense() const { return !parts_.rule.has_value(); }
  // Whether it chooses experts itself.
  bool has_router() const { return parts_.gate.has_value(); }
  // Whether answers may lack experts; see FfnLayerParts.
  bool may_leave_out() const { return parts_.leave_out_missing; }
  int64_t d_model() const {
    return has_router() ? parts_.gate->inputs() : expert_spec().d_model;
  }
  const ExpertSpec& expert_spec() const { return parts_.experts->spec(); }
  // The routed experts, or the one dense FFN.
  const ExpertShard& experts() const { return *parts_.experts; }
  // Null if there is none.
  const ExpertShard* shared_expert() const {
    return parts_.shared_expert.get();
  }
  // Requires: !dense().
  const RoutingRule& rule() const { return *parts_.rule; }
  int64_t num_experts() const { return dense() ? 0 : rule().num_experts; }
  int64_t top_k() const { return dense() ? 0 : rule().top_k; }

  // Chooses experts; the result is in `workspace`.
  // hidden_states: [tokens, d_model]. Requires: has_router().
  void Route(ConstMatrix hidden_states, LayerWorkspace& workspace,
             ForwardStats& stats) const;

  // Runs the layer.
  //
  // hidden_states: [tokens, d_model], zero tokens allowed
  // given: routing chosen by the caller, or nullptr to choose here, which
  //        requires dense() or has_router(). Ids are -1
  //        (skip) or in [0, num_experts), distinct within a row.
  // out:   [tokens, d_model], overwritten; rows whose input holds NaN or Inf
  //        are all NaN. Rows of tokens whose experts have not all been run are
  //        undefined: see LayerWorkspace::failed_experts.
  // Errors: those of the expert shards; of a dense layer or a shared expert,
  //         which every token visits, also why it has not been run.
  absl::Status Forward(ConstMatrix hidden_states, const Routing* given,
                       LayerWorkspace& workspace, Matrix out,
                       ForwardStats& stats) const;

 private:
  // Which rows are finite: [tokens], in the workspace.
  const bool* FindFinite(ConstMatrix hidden_states,
                         LayerWorkspace& workspace) const;
  // The part of a routed layer before the shared expert.
  absl::Status RunRouted(ConstMatrix hidden_states, const Routing* given,
                         LayerWorkspace& workspace, Matrix out,
                         ForwardStats& stats) const;
  // out = sum of weight * expert over the routing in `workspace`.
  // hidden_states and out: [tokens, expert_spec().d_model]
  absl::Status RunRoutedExperts(ConstMatrix hidden_states,
                                LayerWorkspace& workspace, Matrix out,
                                ForwardStats& stats) const;
  // Given workspace.failures_: fills failed_experts_, or leaves experts out.
  void HandleMissing(LayerWorkspace& workspace) const;
  void LeaveOutMissing(const std::vector<bool>& missing,
                       LayerWorkspace& workspace) const;
  absl::Status AddSharedExpert(ConstMatrix hidden_states,
                               LayerWorkspace& workspace, Matrix out) const;

  FfnLayerParts parts_;
};

}  // namespace moe
