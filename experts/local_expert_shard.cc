#include "experts/local_expert_shard.h"

#include <algorithm>
#include <initializer_list>

#include "experts/base/check.h"
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

}  // namespace

void ExpertWorkspace::Run(const ExpertSpec& spec,
                          absl::Span<const PackedExpert> experts,
                          const ExpertBatch& batch, Matrix out) {
  const auto parallel_for = [this](auto tasks, auto fn) {
    executor_->ParallelFor(tasks, fn);
  };
  runner_.Run(spec, experts, batch, parallel_for, out);
}

void ExpertWorkspace::Multiply(const PackedMatrix& matrix, const float* bias,
                               ConstMatrix x, Matrix out) {
  const auto parallel_for = [this](auto tasks, auto fn) {
    executor_->ParallelFor(tasks, fn);
  };
  runner_.Multiply(matrix, bias, x, parallel_for, out);
}

std::unique_ptr<LocalExpertShard> LocalExpertShard::Load(
    const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
    WeightFormat format, Executor& executor, ExpertWorkspace* workspace) {
  std::unique_ptr<LocalExpertShard> shard(
      new LocalExpertShard(spec, workspace));
  shard->PlaceWeights(experts, format);
  shard->PackWeights(experts, executor);
  if (spec.has_bias) shard->PackBiases(experts);
  return shard;
}

void LocalExpertShard::PlaceWeights(absl::Span<const StoredExpert> experts,
                                    WeightFormat format) {
  int64_t bytes = 0;
  experts_.resize(experts.size());
  for (size_t e = 0; e < experts.size(); ++e) {
    const ExpertLayouts layouts = LayoutsOf(spec_, experts[e], format);
    experts_[e].up.layout = layouts.up;
    experts_[e].up.panels = layouts.up.panels() * up_matrices();
    experts_[e].down.layout = layouts.down;
    experts_[e].down.panels = layouts.down.panels();
    bytes += BytesOf(experts_[e].up) + BytesOf(experts_[e].down);
  }
  const uint8_t* next = weights_.Grow(bytes + kPackedSlack);
  for (PackedExpert& expert : experts_) {
    for (PackedMatrix* matrix : {&expert.up, &expert.down}) {
      matrix->data = next;
      next += BytesOf(*matrix);
    }
  }
}

void LocalExpertShard::PackWeights(absl::Span<const StoredExpert> experts,
                                   Executor& executor) {
  // Every kPanelsPerTask panels of a projection of an expert are a task.
  struct Part {
    const StoredMatrix* from;
    const PackedMatrix* to;
    int64_t first_panel;  // of `from`
    int64_t step;         // its panel i is panel i * step + offset of `to`
    int64_t offset;
  };
  std::vector<Part> parts;
  const auto add = [&](const StoredMatrix& from, const PackedMatrix& to,
                       int64_t step, int64_t offset) {
    for (int64_t p = 0; p < to.layout.panels(); p += kPanelsPerTask) {
      parts.push_back({&from, &to, p, step, offset});
    }
  };
  const int64_t step = up_matrices();
  for (size_t e = 0; e < experts.size(); ++e) {
    const PackedExpert& packed = experts_[e];
    if (spec_.gated) {
      add(experts[e].Weights(Projection::kGate), packed.up, step, 0);
    }
    add(experts[e].Weights(Projection::kUp), packed.up, step, step - 1);
    add(experts[e].Weights(Projection::kDown), packed.down, 1, 0);
  }
  executor.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i, int) {
    const Part& part = parts[static_cast<size_t>(i)];
    const PackedLayout& layout = part.to->layout;
    const int64_t end =
        std::min(part.first_panel + kPanelsPerTask, layout.panels());
    for (int64_t p = part.first_panel; p < end; ++p) {
      const int64_t at =
          part.to->Panel(p * part.step + part.offset) - weights_.data();
      PackStoredPanel(layout, *part.from, p, weights_.data() + at);
    }
  });
}

void LocalExpertShard::PackBiases(absl::Span<const StoredExpert> experts) {
  int64_t floats = 0;
  for (const PackedExpert& expert : experts_) {
    floats += (expert.up.panels + expert.down.panels) * kPanelWidth;
  }
  float* next = biases_.Grow(floats);
  for (size_t e = 0; e < experts.size(); ++e) {
    const StoredExpert& stored = experts[e];
    experts_[e].up_bias = next;
    next = spec_.gated ? PackBias({stored.Bias(Projection::kGate),
                                   stored.Bias(Projection::kUp)},
                                  next)
                       : PackBias({stored.Bias(Projection::kUp)}, next);
    experts_[e].down_bias = next;
    next = PackBias({stored.Bias(Projection::kDown)}, next);
  }
}

WeightsBytes LocalExpertShard::weights() const {
  WeightsBytes bytes;
  for (const PackedExpert& expert : experts_) {
    for (const PackedMatrix* matrix : {&expert.up, &expert.down}) {
      bytes[matrix->layout.format] += BytesOf(*matrix);
    }
  }
  bytes[WeightFormat::kF32] += biases_.size() * int64_t{sizeof(float)};
  return bytes;
}

absl::Status LocalExpertShard::Forward(const ExpertBatch& batch, Matrix out) {
  MOE_DCHECK(static_cast<int64_t>(batch.offsets.size()) == num_experts() + 1);
  MOE_DCHECK(out.rows() == static_cast<int64_t>(batch.rows.size()) &&
             out.cols() == spec_.d_model);
  workspace_->Run(spec_, experts_, batch, out);
  return absl::OkStatus();
}

}  // namespace moe
