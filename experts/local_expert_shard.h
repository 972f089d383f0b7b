// The experts of one layer in this process' memory.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/checkpoint/stored_matrix.h"
#include "experts/executor.h"
#include "experts/expert_shard.h"
#include "experts/weight_format.h"

namespace moe {

enum class Projection : uint8_t { kGate, kUp, kDown };
inline constexpr int kNumProjections = 3;

// The parameters of one expert as they are stored: in a checkpoint, or made up.
// Whatever packs them sees their coding, and may carry it over or widen it.
struct StoredExpert {
  // By Projection, [out, in]; the memory must outlive the expert. Classic
  // experts leave gate_proj empty.
  std::array<StoredMatrix, kNumProjections> weights;
  // By Projection, [out]; empty in experts without biases.
  std::array<std::vector<float>, kNumProjections> biases;

  const StoredMatrix& Weights(Projection projection) const {
    return weights[static_cast<size_t>(projection)];
  }
  absl::Span<const float> Bias(Projection projection) const {
    return biases[static_cast<size_t>(projection)];
  }
};

// Scratch memory of the experts of one batch in flight; shared by all shards
// that run one after the other.
class ExpertWorkspace {
 public:
  // The executor must outlive this object.
  explicit ExpertWorkspace(Executor* executor);
  Executor& executor() const { return *executor_; }

 private:
  friend class LocalExpertShard;
  // One block of an output matrix.
  struct Block {
    int32_t expert;
    int32_t first_row;
    int32_t rows;
    int32_t first_col;
    int32_t cols;
  };
  Executor* executor_;
  AlignedBuffer<float> inputs_;  // [assignments, d_model], gathered
  AlignedBuffer<float> inner_;   // [assignments, d_ff]
  std::vector<AlignedBuffer<float>> gate_blocks_;  // one per worker
  std::vector<Block> blocks_;
};

class LocalExpertShard final : public ExpertShard {
 public:
  // Reads and packs the weights of all experts, on the threads of `executor`.
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
  // Memory that the learned parameters take.
  int64_t weights_bytes() const;

  absl::Status Forward(const ExpertBatch& batch, Matrix out) override;

 private:
  // Row-major float32, [out, in] as in the checkpoint.
  struct Expert {
    AlignedBuffer<float> weights[kNumProjections];
    AlignedBuffer<float> biases[kNumProjections];
  };

  LocalExpertShard(const ExpertSpec& spec, int64_t num_experts,
                   ExpertWorkspace* workspace);
  ConstMatrix Weights(const Expert& expert, Projection projection) const;
  void Gather(const ExpertBatch& batch, Matrix inputs) const;
  // Fills workspace_->blocks_ with blocks that cover [rows of each expert,
  // cols].
  void PlanBlocks(const ExpertBatch& batch, int64_t cols) const;
  void RunBlocks(
      absl::FunctionRef<void(const ExpertWorkspace::Block&, int worker)> run)
      const;

  const ExpertSpec spec_;
  std::vector<Expert> experts_;
  ExpertWorkspace* workspace_;
};

}  // namespace moe
