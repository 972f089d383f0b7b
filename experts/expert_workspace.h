// What the experts of one batch in flight compute with: threads, kernels, and
// the memory that a batch needs beside its inputs and outputs.

#pragma once

#include <map>
#include <memory>
#include <typeindex>
#include <typeinfo>

#include "absl/types/span.h"
#include "experts/base/expert_batch.h"
#include "experts/base/expert_spec.h"
#include "experts/base/matrix_view.h"
#include "experts/compute_turn.h"
#include "experts/executor.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/packed_matrix.h"
#include "experts/kernels/run_experts.h"

namespace moe {

// Shared by all shards and linear maps that run one after the other.
//
// Thread-compatible: any thread, one at a time. Batches that run at the same
// time need a workspace each; these may share an executor, through the same
// layers.
class ExpertWorkspace {
 public:
  // turn: of the engine, whose batches take turns; null if whoever uses this
  // workspace may always compute. It and the executor must outlive this object.
  explicit ExpertWorkspace(Executor* executor,
                           const Kernels& kernels = BestKernels(),
                           ComputeTurn* turn = nullptr)
      : executor_(executor),
        kernels_(kernels),
        turn_(turn),
        runner_(kernels, executor->num_threads()) {}

  Executor& executor() const { return *executor_; }
  const Kernels& kernels() const { return kernels_; }
  // What a shard that waits for others gives up meanwhile; may be null.
  ComputeTurn* turn() const { return turn_; }

  // Packed experts, and packed linear maps; see ExpertRunner.
  void Run(const ExpertSpec& spec, absl::Span<const PackedExpert> experts,
           const ExpertBatch& batch, Matrix out);
  void Multiply(const PackedMatrix& matrix, const float* bias, ConstMatrix x,
                Matrix out);

  // The one T of this workspace, made by T() when it is first asked for: memory
  // that shards of one kind reuse from batch to batch. T is a type of the shard
  // that asks, so that no other kind knows it.
  //
  // The reference stays valid as long as the workspace. What it refers to is
  // the next shard's of that kind: a shard that hands this workspace on to
  // another of its own kind cannot rely on it any more.
  template <typename T>
  T& Scratch() {
    std::shared_ptr<void>& object = scratch_[std::type_index(typeid(T))];
    if (object == nullptr) object = std::make_shared<T>();
    return *static_cast<T*>(object.get());
  }

 private:
  Executor* executor_;
  const Kernels& kernels_;
  ComputeTurn* turn_;
  ExpertRunner runner_;
  // Owned; shared_ptr, since it knows how to destroy what it holds.
  std::map<std::type_index, std::shared_ptr<void>> scratch_;
};

}  // namespace moe
