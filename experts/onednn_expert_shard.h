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
  // Widens or rounds the weights of all experts.
  //
  // experts, executor: needed during the call only.
  // Requires: shapes that fit `spec`; for bfloat16, OneDnnMultipliesBF16().
  static std::unique_ptr<OneDnnExperts> Load(
      const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
      Executor& executor);

  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override {
    return static_cast<int64_t>(experts_.size());
  }
  WeightsBytes weights() const override;

  absl::Status Forward(const ExpertBatch& batch, ExpertWorkspace& workspace,
                       Matrix out, ExpertFailures& failures) const override;

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
  struct Outputs {
    AlignedBuffer<float> gate;
    AlignedBuffer<float> up;
  };
  // Scratch memory of a batch.
  struct Memory {
    AlignedBuffer<Element> inputs;  // [assignments, d_model], gathered
    AlignedBuffer<Element> inner;   // [assignments, d_ff]
    std::vector<Outputs> outputs;   // one per worker
    std::vector<Block> blocks;
  };

  OneDnnExperts(const ExpertSpec& spec, int64_t num_experts)
      : spec_(spec), experts_(static_cast<size_t>(num_experts)) {}
  // Makes room for a batch.
  Memory& MemoryFor(int64_t assignments, ExpertWorkspace& workspace) const;
  static void Gather(const ExpertBatch& batch, Executor& executor,
                     MatrixView<Element> inputs);
  // Runs fn(block, worker) for blocks that cover [rows of each expert, cols].
  static void ForBlocks(
      const ExpertBatch& batch, int64_t cols, Executor& executor,
      std::vector<Block>& blocks,
      absl::FunctionRef<void(const Block& block, int worker)> fn);
  // The block's inner values: activation of gate_proj and up_proj of x.
  void RunUp(const Block& block, MatrixView<const Element> x, Outputs& outputs,
             MatrixView<Element> inner) const;
  // y = block of x * (some rows of a projection)^T + bias.
  void Project(const Block& block, Projection projection,
               MatrixView<const Element> x, Matrix y) const;

  const ExpertSpec spec_;
  std::vector<Expert> experts_;
};

using OneDnnExpertShard = OneDnnExperts<float>;  // --engine=onednn
using OneDnnBF16ExpertShard = OneDnnExperts<uint16_t>;

}  // namespace moe
