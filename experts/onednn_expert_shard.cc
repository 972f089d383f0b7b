#include "experts/onednn_expert_shard.h"

#include <algorithm>
#include <type_traits>

#include "experts/activation.h"
#include "experts/base/check.h"
#include "experts/base/dtype.h"
#include "experts/expert_workspace.h"
#include "experts/matmul_onednn.h"

namespace moe {
namespace {

// Size of an output block: large enough for the product to reach its rate,
// small enough that one hot expert still makes work for every core.
constexpr int64_t kBlockRows = 256;
constexpr int64_t kBlockCols = 256;

template <typename Element>
void Round(const float* from, int64_t size, float scale, Element* to) {
  std::transform(from, from + size, to, [scale](float value) {
    if constexpr (std::is_same_v<Element, float>) {
      return value * scale;
    } else {
      return FloatToBF16(value * scale);
    }
  });
}

}  // namespace

template <typename Element>
WeightsBytes OneDnnExperts<Element>::weights() const {
  constexpr WeightFormat kFormat =
      std::is_same_v<Element, float> ? WeightFormat::kF32 : WeightFormat::kBF16;
  WeightsBytes bytes;
  bytes[kFormat] =
      num_experts() * spec_.parameters() * int64_t{sizeof(Element)};
  return bytes;
}

template <typename Element>
std::unique_ptr<OneDnnExperts<Element>> OneDnnExperts<Element>::Load(
    const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
    Executor& executor) {
  const auto num_experts = static_cast<int64_t>(experts.size());
  std::unique_ptr<OneDnnExperts> shard(new OneDnnExperts(spec, num_experts));
  executor.ParallelFor(num_experts, [&](int64_t e, int) {
    const StoredExpert& from = experts[static_cast<size_t>(e)];
    Expert& to = shard->experts_[static_cast<size_t>(e)];
    AlignedBuffer<float> block;
    for (size_t p = 0; p < kNumProjections; ++p) {
      const StoredMatrix& matrix = from.weights[p];
      if (matrix.data == nullptr) continue;  // gate_proj of a classic expert
      Element* weights = to.weights[p].Grow(matrix.rows * matrix.cols);
      block.Grow(kBlockRows * matrix.cols);
      for (int64_t row = 0; row < matrix.rows; row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, matrix.rows - row);
        matrix.ReadBlock(row, 0, Matrix(block.data(), rows, matrix.cols));
        Round(block.data(), rows * matrix.cols, /*scale=*/1.0F,
              weights + row * matrix.cols);
      }
      to.biases[p] = from.biases[p];
    }
  });
  return shard;
}

template <typename Element>
typename OneDnnExperts<Element>::Memory& OneDnnExperts<Element>::MemoryFor(
    int64_t assignments, ExpertWorkspace& workspace) const {
  auto& memory = workspace.Scratch<Memory>();
  memory.inputs.Grow(assignments * spec_.d_model);
  memory.inner.Grow(assignments * spec_.d_ff);
  memory.outputs.resize(
      static_cast<size_t>(workspace.executor().num_threads()));
  for (Outputs& outputs : memory.outputs) {
    if (spec_.gated) outputs.gate.Grow(kBlockRows * kBlockCols);
    outputs.up.Grow(kBlockRows * kBlockCols);
  }
  return memory;
}

template <typename Element>
void OneDnnExperts<Element>::Gather(const ExpertBatch& batch,
                                    Executor& executor,
                                    MatrixView<Element> inputs) {
  executor.ParallelFor(inputs.rows(), [&](int64_t row, int) {
    const auto i = static_cast<size_t>(row);
    const float* from = batch.hidden_states.Row(batch.rows[i]);
    const float scale =
        batch.input_scales.empty() ? 1.0F : batch.input_scales[i];
    Round(from, inputs.cols(), scale, inputs.Row(row));
  });
}

template <typename Element>
void OneDnnExperts<Element>::ForBlocks(
    const ExpertBatch& batch, int64_t cols, Executor& executor,
    std::vector<Block>& blocks,
    absl::FunctionRef<void(const Block& block, int worker)> fn) {
  blocks.clear();
  for (size_t e = 0; e + 1 < batch.offsets.size(); ++e) {
    const int64_t end = batch.offsets[e + 1];
    for (int64_t row = batch.offsets[e]; row < end; row += kBlockRows) {
      for (int64_t col = 0; col < cols; col += kBlockCols) {
        blocks.push_back({.expert = static_cast<int64_t>(e),
                          .first_row = row,
                          .rows = std::min(kBlockRows, end - row),
                          .first_col = col,
                          .cols = std::min(kBlockCols, cols - col)});
      }
    }
  }
  executor.ParallelFor(static_cast<int64_t>(blocks.size()),
                       [&](int64_t task, int worker) {
                         fn(blocks[static_cast<size_t>(task)], worker);
                       });
}

template <typename Element>
void OneDnnExperts<Element>::Project(const Block& block, Projection projection,
                                     MatrixView<const Element> x,
                                     Matrix y) const {
  const Expert& expert = experts_[static_cast<size_t>(block.expert)];
  const auto p = static_cast<size_t>(projection);
  const bool down = projection == Projection::kDown;
  const MatrixView<const Element> weights(expert.weights[p].data(),
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

template <typename Element>
void OneDnnExperts<Element>::RunUp(const Block& block,
                                   MatrixView<const Element> x,
                                   Outputs& outputs,
                                   MatrixView<Element> inner) const {
  const Matrix up(outputs.up.data(), block.rows, block.cols);
  const Matrix gate(outputs.gate.data(), block.rows, block.cols);
  Project(block, Projection::kUp, x, up);
  if (spec_.gated) Project(block, Projection::kGate, x, gate);
  for (int64_t r = 0; r < block.rows; ++r) {
    if (spec_.gated) {
      ActivateGated(spec_.activation, gate.Row(r), up.Row(r), block.cols,
                    up.Row(r));
    } else {
      ActivateClassic(spec_.activation, up.Row(r), block.cols, up.Row(r));
    }
    Round(up.Row(r), block.cols, /*scale=*/1.0F,
          inner.Row(block.first_row + r) + block.first_col);
  }
}

template <typename Element>
absl::Status OneDnnExperts<Element>::Forward(const ExpertBatch& batch,
                                             ExpertWorkspace& workspace,
                                             Matrix out,
                                             ExpertFailures& failures) const {
  const auto assignments = static_cast<int64_t>(batch.rows.size());
  MOE_DCHECK(static_cast<int64_t>(batch.offsets.size()) == num_experts() + 1);
  MOE_DCHECK(out.rows() == assignments && out.cols() == spec_.d_model);
  Executor& executor = workspace.executor();
  Memory& memory = MemoryFor(assignments, workspace);
  const MatrixView<Element> inputs(memory.inputs.data(), assignments,
                                   spec_.d_model);
  const MatrixView<Element> inner(memory.inner.data(), assignments, spec_.d_ff);
  Gather(batch, executor, inputs);
  ForBlocks(batch, spec_.d_ff, executor, memory.blocks,
            [&](const Block& block, int worker) {
              RunUp(block, inputs, memory.outputs[static_cast<size_t>(worker)],
                    inner);
            });
  ForBlocks(batch, spec_.d_model, executor, memory.blocks,
            [&](const Block& block, int) {
              Project(block, Projection::kDown, inner,
                      Matrix(out.Row(block.first_row) + block.first_col,
                             block.rows, block.cols, out.stride()));
            });
  failures.Clear();
  return absl::OkStatus();
}

template class OneDnnExperts<float>;
template class OneDnnExperts<uint16_t>;

}  // namespace moe
