// Which rows go through which expert.
//
// Thread-compatible: a plain value, whose memory is the caller's.

#pragma once

#include <chrono>
#include <cstdint>

#include "absl/types/span.h"
#include "experts/base/matrix_view.h"

namespace moe {

// The rows that each expert of a layer has to work on. Rows of one expert are
// adjacent: expert e owns the assignments [offsets[e], offsets[e + 1]).
struct ExpertBatch {
  ConstMatrix hidden_states;          // [tokens, d_model]
  absl::Span<const int32_t> offsets;  // [num_experts + 1], ascending from 0 to
                                      // the number of assignments
  absl::Span<const int32_t>
      rows;  // [assignments], row of hidden_states, ascending within an expert
  absl::Span<const float> input_scales;  // [assignments] factor on the expert's
                                         // input, or empty (= 1)
  // When nobody waits for the result any more.
  std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::time_point::max();
};

}  // namespace moe
