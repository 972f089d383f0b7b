// The seam between routing and the experts: the experts of one layer, wherever
// they are.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "experts/base/expert_batch.h"
#include "experts/base/expert_spec.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_failures.h"
#include "experts/weights_bytes.h"

namespace moe {

class ExpertWorkspace;

// Thread-safe, and immutable to its users: all that belongs to one batch lies
// in what the caller hands to Forward. Batches with a workspace, an output and
// failures of their own may run through the same shard at the same time.
class ExpertShard {
 public:
  virtual ~ExpertShard() = default;

  virtual const ExpertSpec& spec() const = 0;
  virtual int64_t num_experts() const = 0;
  // Memory that the learned parameters take in this process: nothing for those
  // of others.
  virtual WeightsBytes weights() const { return {}; }

  // out[i] = expert(hidden_states[rows[i]] * input_scales[i]) for each
  // assignment i whose expert is not among the failures.
  //
  // workspace: used until the call returns. Its executor has as many NUMA nodes
  //            as the one that the weights were packed for.
  // out:       [assignments, d_model], overwritten; rows of experts that failed
  //            are undefined.
  // failures:  overwritten: the experts that had rows and have not been run.
  //            Experts in this process always run; those elsewhere may be
  //            UNAVAILABLE, RESOURCE_EXHAUSTED or DEADLINE_EXCEEDED.
  // Requires:  a batch whose offsets and rows are consistent (built by
  //            router/dispatch).
  // Errors:    of the whole batch; none so far.
  virtual absl::Status Forward(const ExpertBatch& batch,
                               ExpertWorkspace& workspace, Matrix out,
                               ExpertFailures& failures) const = 0;
};

}  // namespace moe
