// What the experts of one batch in flight compute with: threads, kernels, and
// the memory that a batch needs beside its inputs and outputs.

#pragma once

#include "absl/types/span.h"
#include "experts/base/expert_batch.h"
#include "experts/base/expert_spec.h"
#include "experts/base/matrix_view.h"
#include "experts/executor.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/packed_matrix.h"
#include "experts/kernels/run_experts.h"

namespace moe {

// Shared by all shards and linear maps that run one after the other.
//
// Thread-compatible: any thread, one at a time.
class ExpertWorkspace {
 public:
  // The executor must outlive this object.
  explicit ExpertWorkspace(Executor* executor,
                           const Kernels& kernels = BestKernels())
      : executor_(executor),
        kernels_(kernels),
        runner_(kernels, executor->num_threads()) {}

  Executor& executor() const { return *executor_; }
  const Kernels& kernels() const { return kernels_; }

  // Packed experts, and packed linear maps; see ExpertRunner.
  void Run(const ExpertSpec& spec, absl::Span<const PackedExpert> experts,
           const ExpertBatch& batch, Matrix out);
  void Multiply(const PackedMatrix& matrix, const float* bias, ConstMatrix x,
                Matrix out);

 private:
  Executor* executor_;
  const Kernels& kernels_;
  ExpertRunner runner_;
};

}  // namespace moe
