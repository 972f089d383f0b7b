#include "experts/local_expert_shard.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>

#include "experts/base/check.h"
#include "experts/expert_workspace.h"
#include "experts/pack_stored.h"

namespace moe {
namespace {

// Panels that one task packs: enough to read a source row by row in runs of
// memory, few enough to keep every thread busy with one expert.
constexpr int64_t kPanelsPerTask = 8;

// How the projections of one expert are packed.
struct ExpertLayouts {
  PackedLayout up;  // of gate_proj, too
  PackedLayout down;
};

ExpertLayouts LayoutsOf(const ExpertSpec& spec, const StoredExpert& expert,
                        WeightFormat format) {
  ExpertLayouts layouts{
      .up = LayoutFor(format, expert.Weights(Projection::kUp)),
      .down = LayoutFor(format, expert.Weights(Projection::kDown))};
  if (!spec.gated) return layouts;
  // Their panels alternate, hence they share a layout; float32 holds what two
  // that differ have in common.
  const PackedLayout gate =
      LayoutFor(format, expert.Weights(Projection::kGate));
  layouts.up.zero_points |= gate.zero_points;
  if (gate.format != layouts.up.format || gate.group != layouts.up.group ||
      gate.scale_dtype != layouts.up.scale_dtype) {
    layouts.up = PackedLayout::For(WeightFormat::kF32, spec.d_ff, spec.d_model);
  }
  return layouts;
}

// Bias values in the order of the panels: those of gate_proj and up_proj in
// turn if there are both. Returns the end.
float* PackBias(std::initializer_list<absl::Span<const float>> biases,
                float* dst) {
  const auto size = static_cast<int64_t>(biases.begin()->size());
  for (int64_t first = 0; first < size; first += kPanelWidth) {
    const int64_t count = std::min(kPanelWidth, size - first);
    for (const absl::Span<const float> bias : biases) {
      std::fill(std::copy_n(bias.begin() + first, count, dst),
                dst + kPanelWidth, 0.0F);
      dst += kPanelWidth;
    }
  }
  return dst;
}

int64_t BytesOf(const PackedMatrix& matrix) {
  return matrix.panels * matrix.layout.panel_bytes();
}

// The panels of a matrix of `panels` that belong to threads
// [first_thread, first_thread + threads) of num_threads; data is not set.
PackedMatrix SliceOf(const PackedLayout& layout, int64_t panels,
                     int64_t first_thread, int64_t threads,
                     int64_t num_threads) {
  const int64_t units = (panels + kSlicePanels - 1) / kSlicePanels;
  const auto panels_before = [&](int64_t thread) {
    return std::min(units * thread / num_threads * kSlicePanels, panels);
  };
  const int64_t first = panels_before(first_thread);
  return {.layout = layout,
          .data = nullptr,
          .panels = panels_before(first_thread + threads) - first,
          .first_panel = first};
}

}  // namespace

std::unique_ptr<LocalExpertShard> LocalExpertShard::Load(
    const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
    WeightFormat format, Executor& executor,
    absl::Span<const int> node_threads) {
  std::unique_ptr<LocalExpertShard> shard(
      new LocalExpertShard(spec, static_cast<int64_t>(experts.size())));
  if (node_threads.empty()) node_threads = executor.node_threads();
  shard->PlaceWeights(experts, format, node_threads);
  shard->PackWeights(experts, executor);
  if (spec.has_bias) shard->PackBiases(experts);
  return shard;
}

void LocalExpertShard::PlaceWeights(absl::Span<const StoredExpert> experts,
                                    WeightFormat format,
                                    absl::Span<const int> node_threads) {
  std::vector<ExpertLayouts> layouts;
  layouts.reserve(experts.size());
  for (const StoredExpert& expert : experts) {
    layouts.push_back(LayoutsOf(spec_, expert, format));
  }
  const int64_t num_threads =
      std::accumulate(node_threads.begin(), node_threads.end(), int64_t{0});
  weights_.resize(node_threads.size());
  int64_t first_thread = 0;
  for (size_t node = 0; node < node_threads.size(); ++node) {
    const int64_t threads = node_threads[node];
    const auto slice_of = [&](const PackedLayout& layout, int64_t panels) {
      return SliceOf(layout, panels, first_thread, threads, num_threads);
    };
    int64_t bytes = 0;
    for (const ExpertLayouts& expert : layouts) {
      PackedExpert slice;
      slice.up = slice_of(expert.up, expert.up.panels() * up_matrices());
      slice.down = slice_of(expert.down, expert.down.panels());
      bytes += BytesOf(slice.up) + BytesOf(slice.down);
      slices_.push_back(slice);
    }
    uint8_t* memory = weights_[node].Grow(bytes + kPackedSlack);
    if (node_threads.size() > 1) KeepWhereWritten(memory, bytes);
    const uint8_t* next = memory;
    for (size_t e = 0; e < experts.size(); ++e) {
      PackedExpert& slice = slices_[node * experts.size() + e];
      for (PackedMatrix* matrix : {&slice.up, &slice.down}) {
        matrix->data = next;
        next += BytesOf(*matrix);
      }
    }
    first_thread += threads;
  }
}

void LocalExpertShard::PackWeights(absl::Span<const StoredExpert> experts,
                                   Executor& executor) {
  // Every kPanelsPerTask panels of a projection in a slice are a task. Tasks
  // come node by node: who first writes memory decides which node has it.
  struct Part {
    const StoredMatrix* from;
    const PackedMatrix* to;
    AlignedBuffer<uint8_t>* memory;  // that `to` points into
    int64_t first_panel;             // of `from`
    int64_t end_panel;
    int64_t step;  // its panel i is panel i * step + offset of the matrix
    int64_t offset;
  };
  std::vector<Part> parts;
  std::vector<int64_t> ends;
  const auto add = [&](const StoredMatrix& from, const PackedMatrix& to,
                       AlignedBuffer<uint8_t>& memory, int64_t step,
                       int64_t offset) {
    const int64_t end = (to.first_panel + to.panels) / step;
    for (int64_t p = to.first_panel / step; p < end; p += kPanelsPerTask) {
      parts.push_back({&from, &to, &memory, p,
                       std::min(p + kPanelsPerTask, end), step, offset});
    }
  };
  const int64_t step = up_matrices();
  for (size_t node = 0; node < weights_.size(); ++node) {
    AlignedBuffer<uint8_t>& memory = weights_[node];
    for (size_t e = 0; e < experts.size(); ++e) {
      const PackedExpert& slice = slices_[node * experts.size() + e];
      if (spec_.gated) {
        add(experts[e].Weights(Projection::kGate), slice.up, memory, step, 0);
      }
      add(experts[e].Weights(Projection::kUp), slice.up, memory, step,
          step - 1);
      add(experts[e].Weights(Projection::kDown), slice.down, memory, 1, 0);
    }
    ends.push_back(static_cast<int64_t>(parts.size()));
  }
  const auto pack = [&](int64_t i, int) {
    const Part& part = parts[static_cast<size_t>(i)];
    for (int64_t p = part.first_panel; p < part.end_panel; ++p) {
      const int64_t panel = p * part.step + part.offset - part.to->first_panel;
      uint8_t* memory = part.memory->data();
      const int64_t at = part.to->Panel(panel) - memory;
      PackStoredPanel(part.to->layout, *part.from, p, memory + at);
    }
  };
  if (ends.size() == executor.node_threads().size()) {
    executor.ParallelFor(ends, pack, Executor::TakeOthers::kNever);
  } else {
    executor.ParallelFor(ends.back(), pack);
  }
}

void LocalExpertShard::PackBiases(absl::Span<const StoredExpert> experts) {
  int64_t floats = 0;
  for (const PackedExpert& slice : slices_) {
    floats += (slice.up.panels + slice.down.panels) * kPanelWidth;
  }
  float* next = biases_.Grow(floats);
  for (size_t e = 0; e < experts.size(); ++e) {
    const StoredExpert& stored = experts[e];
    const float* up = next;
    next = spec_.gated ? PackBias({stored.Bias(Projection::kGate),
                                   stored.Bias(Projection::kUp)},
                                  next)
                       : PackBias({stored.Bias(Projection::kUp)}, next);
    const float* down = next;
    next = PackBias({stored.Bias(Projection::kDown)}, next);
    for (size_t s = e; s < slices_.size(); s += experts.size()) {
      PackedExpert& slice = slices_[s];
      slice.up_bias = up + slice.up.first_panel * kPanelWidth;
      slice.down_bias = down + slice.down.first_panel * kPanelWidth;
    }
  }
}

WeightsBytes LocalExpertShard::weights() const {
  WeightsBytes bytes;
  for (const PackedExpert& slice : slices_) {
    for (const PackedMatrix* matrix : {&slice.up, &slice.down}) {
      bytes[matrix->layout.format] += BytesOf(*matrix);
    }
  }
  bytes[WeightFormat::kF32] += biases_.size() * int64_t{sizeof(float)};
  return bytes;
}

absl::Status LocalExpertShard::Forward(const ExpertBatch& batch,
                                       ExpertWorkspace& workspace, Matrix out,
                                       ExpertFailures& failures) const {
  MOE_CHECK(weights_.size() == 1 ||
            weights_.size() == workspace.executor().node_threads().size());
  MOE_DCHECK(static_cast<int64_t>(batch.offsets.size()) == num_experts() + 1);
  MOE_DCHECK(out.rows() == static_cast<int64_t>(batch.rows.size()) &&
             out.cols() == spec_.d_model);
  workspace.Run(spec_, slices_, batch, out);
  failures.Clear();
  return absl::OkStatus();
}

}  // namespace moe
