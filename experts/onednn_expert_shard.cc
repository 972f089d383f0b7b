#include "experts/onednn_expert_shard.h"

#include <algorithm>

#include "experts/activation.h"
#include "experts/base/check.h"
#include "experts/matmul_onednn.h"

namespace moe {
namespace {

// Size of an output block: large enough for the product to reach its rate,
// small enough that one hot expert still makes work for every core.
constexpr int64_t kBlockRows = 256;
constexpr int64_t kBlockCols = 256;

}  // namespace

OneDnnExpertShard::OneDnnExpertShard(const ExpertSpec& spec,
                                     int64_t num_experts, Executor* executor)
    : spec_(spec),
      experts_(static_cast<size_t>(num_experts)),
      executor_(executor),
      gate_blocks_(static_cast<size_t>(executor->num_threads())) {
  for (auto& block : gate_blocks_) block.Grow(kBlockRows * kBlockCols);
}

std::unique_ptr<OneDnnExpertShard> OneDnnExpertShard::Load(
    const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
    Executor* executor) {
  const auto num_experts = static_cast<int64_t>(experts.size());
  std::unique_ptr<OneDnnExpertShard> shard(
      new OneDnnExpertShard(spec, num_experts, executor));
  executor->ParallelFor(num_experts, [&](int64_t e, int) {
    const StoredExpert& from = experts[static_cast<size_t>(e)];
    Expert& to = shard->experts_[static_cast<size_t>(e)];
    for (size_t p = 0; p < kNumProjections; ++p) {
      const StoredMatrix& matrix = from.weights[p];
      if (matrix.data == nullptr) continue;  // gate_proj of a classic expert
      float* weights = to.weights[p].Grow(matrix.rows * matrix.cols);
      matrix.ReadBlock(0, 0, Matrix(weights, matrix.rows, matrix.cols));
      to.biases[p] = from.biases[p];
    }
  });
  return shard;
}

void OneDnnExpertShard::Gather(const ExpertBatch& batch, Matrix inputs) const {
  const bool scaled = !batch.input_scales.empty();
  for (int64_t i = 0; i < inputs.rows(); ++i) {
    const float* row =
        batch.hidden_states.Row(batch.rows[static_cast<size_t>(i)]);
    const float scale =
        scaled ? batch.input_scales[static_cast<size_t>(i)] : 1.0F;
    float* to = inputs.Row(i);
    for (int64_t c = 0; c < spec_.d_model; ++c) to[c] = row[c] * scale;
  }
}

void OneDnnExpertShard::ForBlocks(
    const ExpertBatch& batch, int64_t cols,
    absl::FunctionRef<void(const Block& block, int worker)> fn) {
  blocks_.clear();
  for (size_t e = 0; e + 1 < batch.offsets.size(); ++e) {
    const int64_t end = batch.offsets[e + 1];
    for (int64_t row = batch.offsets[e]; row < end; row += kBlockRows) {
      for (int64_t col = 0; col < cols; col += kBlockCols) {
        blocks_.push_back({.expert = static_cast<int64_t>(e),
                           .first_row = row,
                           .rows = std::min(kBlockRows, end - row),
                           .first_col = col,
                           .cols = std::min(kBlockCols, cols - col)});
      }
    }
  }
  executor_->ParallelFor(static_cast<int64_t>(blocks_.size()),
                         [&](int64_t task, int worker) {
                           fn(blocks_[static_cast<size_t>(task)], worker);
                         });
}

void OneDnnExpertShard::Project(const Block& block, Projection projection,
                                ConstMatrix x, Matrix y) const {
  const Expert& expert = experts_[static_cast<size_t>(block.expert)];
  const auto p = static_cast<size_t>(projection);
  const bool down = projection == Projection::kDown;
  const ConstMatrix weights(expert.weights[p].data(),
                            down ? spec_.d_model : spec_.d_ff,
                            down ? spec_.d_ff : spec_.d_model);
  MatmulTransposed(x.Rows(block.first_row, block.rows),
                   weights.Rows(block.first_col, block.cols), y);
  if (expert.biases[p].empty()) return;
  const float* bias = expert.biases[p].data() + block.first_col;
  for (int64_t r = 0; r < y.rows(); ++r) {
    for (int64_t c = 0; c < y.cols(); ++c) y.Row(r)[c] += bias[c];
  }
}

absl::Status OneDnnExpertShard::Forward(const ExpertBatch& batch, Matrix out) {
  const auto assignments = static_cast<int64_t>(batch.rows.size());
  MOE_DCHECK(static_cast<int64_t>(batch.offsets.size()) == num_experts() + 1);
  MOE_DCHECK(out.rows() == assignments && out.cols() == spec_.d_model);
  const Matrix inputs(inputs_.Grow(assignments * spec_.d_model), assignments,
                      spec_.d_model);
  const Matrix inner(inner_.Grow(assignments * spec_.d_ff), assignments,
                     spec_.d_ff);
  const auto block_of = [](Matrix matrix, const Block& block) {
    return Matrix(matrix.Row(block.first_row) + block.first_col, block.rows,
                  block.cols, matrix.stride());
  };
  Gather(batch, inputs);
  ForBlocks(batch, spec_.d_ff, [&](const Block& block, int worker) {
    const Matrix h = block_of(inner, block);
    Project(block, Projection::kUp, inputs, h);
    if (!spec_.gated) {
      for (int64_t r = 0; r < h.rows(); ++r) {
        ActivateClassic(spec_.activation, h.Row(r), h.cols(), h.Row(r));
      }
      return;
    }
    const Matrix gate(gate_blocks_[static_cast<size_t>(worker)].data(),
                      block.rows, block.cols);
    Project(block, Projection::kGate, inputs, gate);
    for (int64_t r = 0; r < h.rows(); ++r) {
      ActivateGated(spec_.activation, gate.Row(r), h.Row(r), h.cols(),
                    h.Row(r));
    }
  });
  ForBlocks(batch, spec_.d_model, [&](const Block& block, int) {
    Project(block, Projection::kDown, inner, block_of(out, block));
  });
  return absl::OkStatus();
}

}  // namespace moe
