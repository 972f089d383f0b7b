// Groups the (token, choice) pairs of a batch by expert.
//
// Thread-safety: thread-compatible, one Dispatch per batch in flight.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "experts/base/expert_batch.h"
#include "experts/base/matrix_view.h"
#include "router/routing_rule.h"

namespace moe {

// Where the result of one (token, choice) pair comes from, if not from an
// assignment.
inline constexpr int32_t kSkipped = -1;    // expert id -1: contributes nothing
inline constexpr int32_t kUnchanged = -2;  // the expert returns its input

// The dispatch of one batch. Reuses its memory from batch to batch.
class Dispatch {
 public:
  // ids:      [tokens, top_k], each -1 (skip) or in [0, num_experts)
  // weights:  [tokens, top_k]
  // num_ffn_experts: experts with weights; higher ids are identity experts.
  // placement: kInput moves the routing weight to the expert's input.
  void Build(MatrixView<const int32_t> ids, ConstMatrix weights,
             int64_t num_ffn_experts, WeightPlacement placement);

  // Every token to the only expert, as in a dense layer or a shared expert.
  void BuildDense(int64_t tokens);

  // Number of (token, choice) pairs that an expert has to compute.
  int64_t num_assignments() const { return static_cast<int64_t>(rows_.size()); }
  // [num_ffn_experts + 1]
  absl::Span<const int32_t> offsets() const { return offsets_; }
  // [tokens * top_k]: assignment of each pair, kSkipped or kUnchanged.
  absl::Span<const int32_t> assignments() const { return assignments_; }

  // Takes a pair out of the sum: its assignment, if it has one, is not used.
  void Skip(int64_t pair) {
    assignments_[static_cast<size_t>(pair)] = kSkipped;
  }

  // The work for the experts. hidden_states: [tokens, d_model], must outlive
  // the result, as must this object.
  ExpertBatch Batch(ConstMatrix hidden_states) const;

 private:
  std::vector<int32_t> offsets_;
  std::vector<int32_t> rows_;
  std::vector<float> input_scales_;
  std::vector<int32_t> assignments_;
};

}  // namespace moe
