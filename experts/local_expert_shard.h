// The experts of one layer in this process' memory.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/executor.h"
#include "experts/expert_shard.h"
#include "experts/kernels/run_experts.h"
#include "experts/stored_expert.h"
#include "experts/weight_format.h"

namespace moe {

// Threads and scratch memory of the experts of one batch in flight; shared by
// all shards that run one after the other.
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

  // Experts, and linear maps; see ExpertRunner. Any thread, one at a time.
  void Run(const ExpertSpec& spec, absl::Span<const PackedExpert> experts,
           const ExpertBatch& batch, Matrix out);
  void Multiply(const PackedMatrix& matrix, const float* bias, ConstMatrix x,
                Matrix out);

 private:
  Executor* executor_;
  const Kernels& kernels_;
  ExpertRunner runner_;
};

class LocalExpertShard final : public ExpertShard {
 public:
  // Packs the weights of all experts, on the threads of `executor`.
  //
  // experts:   needed during the call only. Requires: shapes that fit `spec`.
  // workspace: must outlive the shard.
  static std::unique_ptr<LocalExpertShard> Load(
      const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
      WeightFormat format, Executor& executor, ExpertWorkspace* workspace);

  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override {
    return static_cast<int64_t>(experts_.size());
  }
  WeightsBytes weights() const override;
  int64_t weights_bytes() const { return weights().total(); }
  // The memory of all packed weights.
  absl::Span<const uint8_t> packed() const {
    return {weights_.data(), static_cast<size_t>(weights_.size())};
  }

  absl::Status Forward(const ExpertBatch& batch, Matrix out) override;

 private:
  LocalExpertShard(const ExpertSpec& spec, ExpertWorkspace* workspace)
      : spec_(spec), workspace_(workspace) {}

  // Matrices whose panels alternate in PackedExpert::up.
  int64_t up_matrices() const { return spec_.gated ? 2 : 1; }
  // Decides the layouts, and where in one buffer each matrix lies.
  void PlaceWeights(absl::Span<const StoredExpert> experts,
                    WeightFormat format);
  void PackWeights(absl::Span<const StoredExpert> experts, Executor& executor);
  void PackBiases(absl::Span<const StoredExpert> experts);

  const ExpertSpec spec_;
  ExpertWorkspace* const workspace_;
  AlignedBuffer<uint8_t> weights_;
  AlignedBuffer<float> biases_;
  std::vector<PackedExpert> experts_;  // pointing into the buffers
};

}  // namespace moe
