// The seam between routing and the experts: the experts of one layer, wherever
// they are.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "experts/base/expert_batch.h"
#include "experts/base/expert_spec.h"
#include "experts/base/matrix_view.h"
#include "experts/weights_bytes.h"

namespace moe {

// Thread-safety: Forward may be called by one thread at a time per shard (it
// owns scratch memory).
class ExpertShard {
 public:
  virtual ~ExpertShard() = default;

  virtual const ExpertSpec& spec() const = 0;
  virtual int64_t num_experts() const = 0;
  // Memory that the learned parameters take in this process: nothing for those
  // of others.
  virtual WeightsBytes weights() const { return {}; }

  // out[i] = expert(hidden_states[rows[i]] * input_scales[i]) for each
  // assignment i whose expert could be asked: see ExpertStatus.
  //
  // out:      [assignments, d_model], overwritten.
  // Requires: a batch whose offsets and rows are consistent (built by
  // router/dispatch).
  // Errors:   of the whole batch; none so far.
  virtual absl::Status Forward(const ExpertBatch& batch, Matrix out) = 0;

  // After Forward: why one expert has not been run, if it had rows; what `out`
  // holds for them is undefined then. Experts in this process always run; those
  // elsewhere may be UNAVAILABLE, RESOURCE_EXHAUSTED or DEADLINE_EXCEEDED.
  virtual absl::Status ExpertStatus(int64_t /*expert*/) const {
    return absl::OkStatus();
  }
  // Whether ExpertStatus is OK for every expert.
  virtual bool AllRan() const { return true; }
};

}  // namespace moe
