// The experts of one layer as plain oneDNN products: an alternative to
// LocalExpertShard, chosen by --engine, and what moe-bench compares with.
//
// oneDNN blocks its products by their shape: the last bits of a row may depend
// on how many rows share its expert.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/executor.h"
#include "experts/expert_shard.h"
#include "experts/stored_expert.h"

namespace moe {

// Element: of weights, and of what they are multiplied by: float, or uint16_t
// with the bits of a bfloat16. Sums and activations are float32.
template <typename Element>
class OneDnnExperts final : public ExpertShard {
 public:
  // Widens or rounds the weights of all experts. `executor` must outlive the
  // shard.
  //
  // experts: needed during the call only.
  // Requires: shapes that fit `spec`; for bfloat16, OneDnnMultipliesBF16().
  static std::unique_ptr<OneDnnExperts> Load(
      const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
      Executor* executor);

  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override {
    return static_cast<int64_t>(experts_.size());
  }
  WeightsBytes weights() const override;

  absl::Status Forward(const ExpertBatch& batch, Matrix out) override;

 private:
  // Row-major, [out, in] as in the checkpoint.
  struct Expert {
    std::array<AlignedBuffer<Element>, kNumProjections> weights;
    std::array<std::vector<float>, kNumProjections> biases;
  };
  // One block of an output matrix.
  struct Block {
    int64_t expert;
    int64_t first_row;
    int64_t rows;
    int64_t first_col;
    int64_t cols;
  };

  // Blocks of one worker: gate_proj and up_proj before the activation.
  struct Scratch {
    AlignedBuffer<float> gate;
    AlignedBuffer<float> up;
  };

  OneDnnExperts(const ExpertSpec& spec, int64_t num_experts,
                Executor* executor);
  void Gather(const ExpertBatch& batch, MatrixView<Element> inputs);
  // Runs fn(block, worker) for blocks that cover [rows of each expert, cols].
  void ForBlocks(const ExpertBatch& batch, int64_t cols,
                 absl::FunctionRef<void(const Block& block, int worker)> fn);
  // y = block of x * (some rows of a projection)^T + bias.
  void Project(const Block& block, Projection projection,
               MatrixView<const Element> x, Matrix y) const;

  const ExpertSpec spec_;
  std::vector<Expert> experts_;
  Executor* const executor_;
  // Scratch memory of the batch that runs.
  AlignedBuffer<Element> inputs_;  // [assignments, d_model], gathered
  AlignedBuffer<Element> inner_;   // [assignments, d_ff]
  std::vector<Scratch> scratch_;   // one per worker
  std::vector<Block> blocks_;
};

using OneDnnExpertShard = OneDnnExperts<float>;  // --engine=onednn
using OneDnnBF16ExpertShard = OneDnnExperts<uint16_t>;

}  // namespace moe
