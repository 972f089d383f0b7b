// The experts of one layer in this process' memory.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/executor.h"
#include "experts/expert_shard.h"
#include "experts/weight_format.h"

namespace moe {

enum class Projection : uint8_t { kGate, kUp, kDown };
inline constexpr int kNumProjections = 3;

// Where the weights of a shard come from: a checkpoint, or a generator.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Widens row `row` of a projection of an expert to float.
  // out: [d_model] of gate_proj and up_proj, [d_ff] of down_proj.
  // Thread-safe.
  virtual void ReadRow(int64_t expert, Projection projection, int64_t row,
                       absl::Span<float> out) const = 0;
  // The bias of a projection: [d_ff], or [d_model] for down_proj.
  // Called only if the spec has biases. Thread-safe.
  virtual void ReadBias(int64_t expert, Projection projection,
                        absl::Span<float> out) const = 0;
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
  // `workspace` must outlive the shard.
  static std::unique_ptr<LocalExpertShard> Load(const ExpertSpec& spec,
                                                int64_t num_experts,
                                                WeightFormat format,
                                                const ExpertSource& source,
                                                Executor& executor,
                                                ExpertWorkspace* workspace);

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
