#include "experts/local_expert_shard.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "experts/activation.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "experts/matmul_onednn.h"

namespace moe {
namespace {

// Size of an output block: large enough for the matrix product to reach its
// rate, small enough that one hot expert still makes work for every core.
constexpr int64_t kBlockRows = 256;
constexpr int64_t kBlockCols = 256;

// Rows of a projection and their length.
std::pair<int64_t, int64_t> Shape(const ExpertSpec& spec,
                                  Projection projection) {
  return projection == Projection::kDown ? std::pair(spec.d_model, spec.d_ff)
                                         : std::pair(spec.d_ff, spec.d_model);
}

void AddBias(const AlignedBuffer<float>& bias, int64_t first_col,
             Matrix block) {
  if (bias.size() == 0) return;
  for (int64_t r = 0; r < block.rows(); ++r) {
    float* row = block.Row(r);
    for (int64_t c = 0; c < block.cols(); ++c) row[c] += bias[first_col + c];
  }
}

}  // namespace

ExpertWorkspace::ExpertWorkspace(Executor* executor)
    : executor_(executor),
      gate_blocks_(static_cast<size_t>(executor->num_threads())) {
  for (auto& block : gate_blocks_) block.Grow(kBlockRows * kBlockCols);
}

LocalExpertShard::LocalExpertShard(const ExpertSpec& spec, int64_t num_experts,
                                   ExpertWorkspace* workspace)
    : spec_(spec),
      experts_(static_cast<size_t>(num_experts)),
      workspace_(workspace) {}

std::unique_ptr<LocalExpertShard> LocalExpertShard::Load(
    const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
    WeightFormat format, Executor& executor, ExpertWorkspace* workspace) {
  MOE_CHECK(format == WeightFormat::kAuto || format == WeightFormat::kF32);
  const auto num_experts = static_cast<int64_t>(experts.size());
  auto shard = std::unique_ptr<LocalExpertShard>(
      new LocalExpertShard(spec, num_experts, workspace));
  executor.ParallelFor(num_experts, [&](int64_t e, int) {
    const StoredExpert& stored = experts[static_cast<size_t>(e)];
    Expert& expert = shard->experts_[static_cast<size_t>(e)];
    for (int p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      if (projection == Projection::kGate && !spec.gated) continue;
      const auto [rows, cols] = Shape(spec, projection);
      const StoredMatrix& from = stored.Weights(projection);
      MOE_CHECK(from.rows == rows && from.cols == cols);
      float* weights = expert.weights[p].Grow(rows * cols);
      for (int64_t r = 0; r < rows; ++r) {
        from.Read(
            r, 0,
            absl::MakeSpan(weights + r * cols, static_cast<size_t>(cols)));
      }
      if (!spec.has_bias) continue;
      const absl::Span<const float> bias = stored.Bias(projection);
      MOE_CHECK(static_cast<int64_t>(bias.size()) == rows);
      std::copy(bias.begin(), bias.end(), expert.biases[p].Grow(rows));
    }
  });
  return shard;
}

int64_t LocalExpertShard::weights_bytes() const {
  return num_experts() * spec_.parameters() * int64_t{sizeof(float)};
}

ConstMatrix LocalExpertShard::Weights(const Expert& expert,
                                      Projection projection) const {
  const auto [rows, cols] = Shape(spec_, projection);
  return ConstMatrix(expert.weights[static_cast<int>(projection)].data(), rows,
                     cols);
}

void LocalExpertShard::Gather(const ExpertBatch& batch, Matrix inputs) const {
  const bool scaled = !batch.input_scales.empty();
  for (int64_t i = 0; i < inputs.rows(); ++i) {
    const float* row =
        batch.hidden_states.Row(batch.rows[static_cast<size_t>(i)]);
    float* to = inputs.Row(i);
    if (!scaled) {
      std::copy_n(row, spec_.d_model, to);
      continue;
    }
    const float scale = batch.input_scales[static_cast<size_t>(i)];
    for (int64_t c = 0; c < spec_.d_model; ++c) to[c] = row[c] * scale;
  }
}

void LocalExpertShard::PlanBlocks(const ExpertBatch& batch,
                                  int64_t cols) const {
  auto& blocks = workspace_->blocks_;
  blocks.clear();
  for (size_t e = 0; e + 1 < batch.offsets.size(); ++e) {
    for (int64_t row = batch.offsets[e]; row < batch.offsets[e + 1];
         row += kBlockRows) {
      for (int64_t col = 0; col < cols; col += kBlockCols) {
        blocks.push_back(
            {.expert = static_cast<int32_t>(e),
             .first_row = static_cast<int32_t>(row),
             .rows = static_cast<int32_t>(
                 std::min(kBlockRows, batch.offsets[e + 1] - row)),
             .first_col = static_cast<int32_t>(col),
             .cols = static_cast<int32_t>(std::min(kBlockCols, cols - col))});
      }
    }
  }
}

void LocalExpertShard::RunBlocks(
    absl::FunctionRef<void(const ExpertWorkspace::Block&, int worker)> run)
    const {
  const auto& blocks = workspace_->blocks_;
  workspace_->executor().ParallelFor(
      static_cast<int64_t>(blocks.size()), [&](int64_t task, int worker) {
        run(blocks[static_cast<size_t>(task)], worker);
      });
}

absl::Status LocalExpertShard::Forward(const ExpertBatch& batch, Matrix out) {
  const auto assignments = static_cast<int64_t>(batch.rows.size());
  MOE_DCHECK(static_cast<int64_t>(batch.offsets.size()) == num_experts() + 1);
  MOE_DCHECK(out.rows() == assignments && out.cols() == spec_.d_model);
  ExpertWorkspace& w = *workspace_;
  const Matrix inputs(w.inputs_.Grow(assignments * spec_.d_model), assignments,
                      spec_.d_model);
  const Matrix inner(w.inner_.Grow(assignments * spec_.d_ff), assignments,
                     spec_.d_ff);
  Gather(batch, inputs);

  // block of out = block of x * (some rows of the projection)^T + bias
  const auto project = [this](const ExpertWorkspace::Block& block,
                              Projection projection, ConstMatrix x, Matrix y) {
    const Expert& expert = experts_[static_cast<size_t>(block.expert)];
    MatmulTransposed(
        x.Rows(block.first_row, block.rows),
        Weights(expert, projection).Rows(block.first_col, block.cols), y);
    AddBias(expert.biases[static_cast<int>(projection)], block.first_col, y);
  };

  PlanBlocks(batch, spec_.d_ff);
  RunBlocks([&](const ExpertWorkspace::Block& block, int worker) {
    const Matrix h(inner.Row(block.first_row) + block.first_col, block.rows,
                   block.cols, inner.stride());
    project(block, Projection::kUp, inputs, h);
    if (!spec_.gated) {
      for (int64_t r = 0; r < h.rows(); ++r) {
        ActivateClassic(spec_.activation, h.Row(r), h.cols(), h.Row(r));
      }
      return;
    }
    const Matrix gate(w.gate_blocks_[static_cast<size_t>(worker)].data(),
                      block.rows, block.cols);
    project(block, Projection::kGate, inputs, gate);
    for (int64_t r = 0; r < h.rows(); ++r) {
      ActivateGated(spec_.activation, gate.Row(r), h.Row(r), h.cols(),
                    h.Row(r));
    }
  });

  PlanBlocks(batch, spec_.d_model);
  RunBlocks([&](const ExpertWorkspace::Block& block, int) {
    project(block, Projection::kDown, inner,
            Matrix(out.Row(block.first_row) + block.first_col, block.rows,
                   block.cols, out.stride()));
  });
  return absl::OkStatus();
}

}  // namespace moe
