#include "experts/kernels/run_experts.h"

#include <algorithm>
#include <array>

#include "experts/base/check.h"

namespace moe {
namespace {

// A unit is the panels that a task multiplies between two activations.
constexpr int64_t kUnitPanels = kMaxPanelsAtOnce;
// Rows of a task, in strips: what its activations take of the L2 cache.
constexpr int64_t kBlockStrips = 16;
constexpr int64_t kBlockRows = kBlockStrips * kMaxStripRows;
// Steps of k that strips multiply in turn: 16 unpacked columns of them are half
// an L1 cache, a multiple of every block.
constexpr int64_t kCutSteps = 256;
// Tasks per thread to aim at: the last one to finish makes the others wait for
// a small part of the whole.
constexpr int64_t kTasksPerThread = 12;
// To read the weights costs about as much as to multiply them by this many
// rows.
constexpr int64_t kReadRows = 4;
// Bytes ahead of the multiplication that the stream of weights is fetched, over
// all panels that are multiplied at once: memory bandwidth times latency, and
// more where it goes into the L2 cache.
constexpr int64_t kPrefetchCodes = 4096;
constexpr int64_t kPrefetchFloats = 8192;

constexpr int64_t kTileFloats = kBlockRows * kUnitPanels * kPanelWidth;
// An unpacked panel, with the scales of the smallest blocks.
constexpr int64_t kUnpackedPanel = (kCutSteps + kCutSteps / 32) * kPanelWidth;
constexpr int64_t kUnpackFloats = kUnitPanels * kUnpackedPanel;
constexpr int64_t kScratchFloats = kTileFloats + kUnpackFloats;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// dst[k][r] = the rows, times their scales, and zeros up to `padded` steps.
void InterleaveRows(const float* const* rows, const float* scales,
                    int64_t num_rows, int64_t steps, int64_t padded,
                    float* dst) {
  // Some lines of each row at a time, so that dst is written while in the
  // cache.
  constexpr int64_t kSteps = 64;
  for (int64_t begin = 0; begin < steps; begin += kSteps) {
    const int64_t end = std::min(begin + kSteps, steps);
    for (int64_t r = 0; r < num_rows; ++r) {
      const float scale = scales != nullptr ? scales[r] : 1.0F;
      const float* row = rows[r];
      for (int64_t k = begin; k < end; ++k) {
        dst[k * num_rows + r] = row[k] * scale;
      }
    }
  }
  std::fill(dst + steps * num_rows, dst + padded * num_rows, 0.0F);
}

// Multiplies `count` adjacent panels by one strip, as many at a time as there
// are kernels for.
void MulStrip(const MulFn (&muls)[3], int64_t count, int64_t rows, bool stream,
              int64_t steps_per_line, MulArgs args, float* tile) {
  const int64_t k_begin = args.k_begin;
  const int64_t k_end = args.k_end;
  const uint8_t* first = args.panels;
  for (int64_t p = 0; p < count;) {
    int log_panels = 2;
    // There always is one for a single panel.
    while (log_panels > 0 &&
           (p + (1 << log_panels) > count || muls[log_panels] == nullptr)) {
      --log_panels;
    }
    const int64_t at_once = 1 << log_panels;
    args.panels = first + p * args.panel_stride;
    args.tile = tile + p * rows * kPanelWidth;
    if (stream) {
      // The last part fetches the panels that come next.
      const int64_t ahead =
          (args.group > 0 ? kPrefetchCodes : kPrefetchFloats) >> log_panels;
      const int64_t alignment = std::max(args.block, kStepAlignment);
      const int64_t last_part =
          std::max<int64_t>(0, k_end - ahead / kLineBytes * steps_per_line) /
          alignment * alignment;
      args.prefetch = ahead;
      if (last_part > 0) {
        args.k_end = last_part;
        muls[log_panels](args);
      }
      args.k_begin = last_part;
      args.k_end = k_end;
      args.prefetch += (at_once - 1) * args.panel_stride;
      muls[log_panels](args);
      args.k_begin = k_begin;
    } else {
      muls[log_panels](args);
    }
    p += at_once;
  }
}

}  // namespace

int64_t ExpertRunner::Strips::Begin(int64_t strip) const {
  return first_row + strip * short_rows + std::min(strip, long_strips);
}

ExpertRunner::ExpertRunner(const Kernels& kernels, int num_threads)
    : kernels_(kernels),
      num_threads_(num_threads),
      scratch_(num_threads * kScratchFloats) {}

void ExpertRunner::CutRows(absl::Span<const int32_t> offsets) {
  strips_.resize(offsets.size() - 1);
  for (size_t e = 0; e < strips_.size(); ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    Strips& strips = strips_[e];
    strips.first_row = offsets[e];
    strips.count = CeilDiv(rows, kernels_.max_rows);
    strips.short_rows = strips.count > 0 ? rows / strips.count : 0;
    strips.long_strips = rows - strips.short_rows * strips.count;
  }
}

int64_t ExpertRunner::BlocksOf(int64_t expert) const {
  return CeilDiv(strips_[expert].count, kBlockStrips);
}

void ExpertRunner::CutTasks(int64_t units, Tasks& tasks) {
  const auto rows_of = [&](int64_t e) {
    const Strips& strips = strips_[e];
    return strips.count * strips.short_rows + strips.long_strips;
  };
  const auto num_experts = static_cast<int64_t>(strips_.size());
  int64_t total = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    if (strips_[e].count > 0) total += units * (rows_of(e) + kReadRows);
  }
  const int64_t wanted = total / (num_threads_ * kTasksPerThread);
  tasks.first.resize(num_experts + 1);
  tasks.units.resize(num_experts);
  for (int64_t e = 0; e < num_experts; ++e) {
    const int64_t cost_of_unit =
        std::min(rows_of(e), kBlockStrips * kernels_.max_rows) + kReadRows;
    tasks.units[e] = std::clamp<int64_t>(wanted / cost_of_unit, 1, units);
    tasks.first[e + 1] =
        tasks.first[e] + BlocksOf(e) * CeilDiv(units, tasks.units[e]);
  }
}

ExpertRunner::Task ExpertRunner::TaskAt(const Tasks& tasks, int64_t units,
                                        int64_t task) const {
  const auto next =
      std::upper_bound(tasks.first.begin(), tasks.first.end(), task);
  const int64_t e = next - tasks.first.begin() - 1;
  const int64_t index = task - tasks.first[e];
  // The blocks of rows that share panels come one after the other.
  const int64_t blocks = BlocksOf(e);
  const int64_t first_unit = index / blocks * tasks.units[e];
  const int64_t first_strip = index % blocks * kBlockStrips;
  return {.expert = e,
          .first_unit = first_unit,
          .end_unit = std::min(first_unit + tasks.units[e], units),
          .first_strip = first_strip,
          .end_strip = std::min(first_strip + kBlockStrips, strips_[e].count)};
}

// A single row needs no interleaving.
bool ExpertRunner::ReadsInPlace(const ExpertBatch& batch, int64_t rows) const {
  return rows == 1 && batch.input_scales.empty() &&
         padded_d_model_ == spec_.d_model;
}

void ExpertRunner::PackRows(const ExpertBatch& batch, int64_t expert) {
  const Strips& strips = strips_[expert];
  for (int64_t s = 0; s < strips.count; ++s) {
    const int64_t begin = strips.Begin(s);
    const int64_t rows = strips.Rows(s);
    if (ReadsInPlace(batch, rows)) continue;
    const float* pointers[kMaxStripRows];
    for (int64_t r = 0; r < rows; ++r) {
      pointers[r] = batch.hidden_states.Row(batch.rows[begin + r]);
    }
    InterleaveRows(
        pointers,
        batch.input_scales.empty() ? nullptr : &batch.input_scales[begin], rows,
        spec_.d_model, padded_d_model_,
        inputs_.data() + begin * padded_d_model_);
  }
}

void ExpertRunner::MulUnit(const PackedMatrix& matrix, const float* bias,
                           int64_t panel, int64_t count, const Task& task,
                           const ExpertBatch* batch, const float* inputs,
                           int worker) {
  const PackedLayout& layout = matrix.layout;
  const Strips& strips = strips_[task.expert];
  const auto format = static_cast<int>(layout.format);
  const int64_t padded_k = RoundUp(layout.k, kStepAlignment);
  // Padding within the last line counts, so that all kernels add the same
  // zeros.
  const int64_t k_end = RoundUp(layout.k, layout.steps_per_line());
  const int64_t panel_bytes = layout.panel_bytes();
  const int64_t first_row = strips.Begin(task.first_strip);
  float* tiles = scratch_.data() + worker * kScratchFloats;
  float* unpacked = tiles + kTileFloats;
  const auto tile_of = [&](int64_t strip) {
    return tiles + (strips.Begin(strip) - first_row) * count * kPanelWidth;
  };
  const auto inputs_of = [&](int64_t strip) {
    const int64_t begin = strips.Begin(strip);
    return batch != nullptr && ReadsInPlace(*batch, strips.Rows(strip))
               ? batch->hidden_states.Row(batch->rows[begin])
               : inputs + begin * padded_k;
  };

  for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
    float* tile = tile_of(s);
    const int64_t rows = strips.Rows(s);
    for (int64_t p = 0; p < count; ++p) {
      for (int64_t r = 0; r < rows; ++r, tile += kPanelWidth) {
        if (bias == nullptr) {
          std::fill_n(tile, kPanelWidth, 0.0F);
        } else {
          std::copy_n(bias + (panel + p) * kPanelWidth, kPanelWidth, tile);
        }
      }
    }
  }

  const int64_t num_strips = task.end_strip - task.first_strip;
  const int64_t rows_of_task = strips.Begin(task.end_strip) - first_row;
  const bool unpack =
      layout.format != WeightFormat::kF32 && rows_of_task > kernels_.fused_rows;
  const auto& muls = !unpack ? kernels_.mul[format]
                     : layout.has_scales()
                         ? kernels_.mul_unpacked
                         : kernels_.mul[static_cast<int>(WeightFormat::kF32)];
  const uint8_t* panels = matrix.Panel(panel);
  // A single strip needs each weight once: the whole of k, to stream few panels
  // at a time. More strips share a cut of k of all panels while it is cached.
  const bool stream = num_strips == 1 && !unpack;
  const int64_t cut = stream ? k_end : kCutSteps;
  for (int64_t k = 0; k < k_end; k += cut) {
    const int64_t end = std::min(k + cut, k_end);
    // From a line of this cut to its like in the next cut, or in the next unit.
    const int64_t to_next =
        end < k_end ? layout.line_offset(end) - layout.line_offset(k)
                    : count * panel_bytes - layout.line_offset(k) +
                          layout.line_offset(0);
    MulArgs args;
    args.panels = panels;
    args.panel_stride = panel_bytes;
    args.k_begin = k;
    args.k_end = end;
    args.group = layout.group;
    args.block = layout.block();
    args.scale_dtype = layout.scale_dtype;
    if (unpack) {
      UnpackArgs from;
      from.k_begin = k;
      from.k_end = end;
      from.group = layout.group;
      from.block = layout.block();
      from.scale_dtype = layout.scale_dtype;
      from.prefetch = to_next;
      for (int64_t p = 0; p < count; ++p) {
        from.panel = panels + p * panel_bytes;
        from.out = unpacked + p * kUnpackedPanel;
        kernels_.unpack[format](from);
      }
      args.panels = reinterpret_cast<const uint8_t*>(unpacked);
      args.panel_stride = kUnpackedPanel * sizeof(float);
      args.k_begin = 0;
      args.k_end = end - k;
      args.group = layout.block();
      args.scale_dtype = DType::kF32;
    }
    for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
      const int64_t rows = strips.Rows(s);
      args.a = inputs_of(s) + (unpack ? k * rows : 0);
      // The first strip to come fetches for all.
      args.prefetch = s == task.first_strip && !unpack ? to_next : 0;
      MulStrip(muls[rows], count, rows, stream, layout.steps_per_line(), args,
               tile_of(s));
    }
  }
}

void ExpertRunner::RunUp(const PackedExpert& expert, const ExpertBatch& batch,
                         const Task& task, int worker) {
  const Strips& strips = strips_[task.expert];
  const int64_t per_output = spec_.gated ? 2 : 1;
  const int64_t first_row = strips.Begin(task.first_strip);
  float* tiles = scratch_.data() + worker * kScratchFloats;
  for (int64_t unit = task.first_unit; unit < task.end_unit; ++unit) {
    const int64_t panel = unit * kUnitPanels;
    const int64_t count = std::min(kUnitPanels, expert.up.panels - panel);
    MulUnit(expert.up, expert.up_bias, panel, count, task, &batch,
            inputs_.data(), worker);
    const int64_t outputs = count / per_output;
    const int64_t column = panel / per_output * kPanelWidth;
    // The inner values go where RunDown wants them, [k][rows], with the padding
    // zero.
    const int64_t columns =
        std::min(outputs * kPanelWidth, spec_.d_ff - column);
    const int64_t padded =
        std::min(outputs * kPanelWidth, padded_d_ff_ - column);
    for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
      const int64_t begin = strips.Begin(s);
      const int64_t rows = strips.Rows(s);
      float* tile = tiles + (begin - first_row) * count * kPanelWidth;
      kernels_.activate(spec_.activation, spec_.gated, outputs, rows, tile);
      float* dst = inner_.data() + begin * padded_d_ff_ + column * rows;
      for (int64_t c = 0; c < columns; ++c) {
        const float* src =
            tile + c / kPanelWidth * rows * kPanelWidth + c % kPanelWidth;
        for (int64_t r = 0; r < rows; ++r) *dst++ = src[r * kPanelWidth];
      }
      std::fill_n(dst, (padded - columns) * rows, 0.0F);
    }
  }
}

void ExpertRunner::RunDown(const PackedExpert& expert, const Task& task,
                           int worker, Matrix out) {
  const Strips& strips = strips_[task.expert];
  const int64_t first_row = strips.Begin(task.first_strip);
  const float* tiles = scratch_.data() + worker * kScratchFloats;
  for (int64_t unit = task.first_unit; unit < task.end_unit; ++unit) {
    const int64_t panel = unit * kUnitPanels;
    const int64_t count = std::min(kUnitPanels, expert.down.panels - panel);
    MulUnit(expert.down, expert.down_bias, panel, count, task,
            /*batch=*/nullptr, inner_.data(), worker);
    for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
      const int64_t begin = strips.Begin(s);
      const int64_t rows = strips.Rows(s);
      const float* tile = tiles + (begin - first_row) * count * kPanelWidth;
      for (int64_t p = 0; p < count; ++p) {
        const int64_t column = (panel + p) * kPanelWidth;
        const int64_t columns = std::min(kPanelWidth, spec_.d_model - column);
        for (int64_t r = 0; r < rows; ++r, tile += kPanelWidth) {
          std::copy_n(tile, columns, out.Row(begin + r) + column);
        }
      }
    }
  }
}

void ExpertRunner::Run(const ExpertSpec& spec,
                       absl::Span<const PackedExpert> experts,
                       const ExpertBatch& batch, ParallelFor parallel_for,
                       Matrix out) {
  spec_ = spec;
  padded_d_model_ = RoundUp(spec.d_model, kStepAlignment);
  padded_d_ff_ = RoundUp(spec.d_ff, kStepAlignment);
  MOE_DCHECK(experts.size() + 1 == batch.offsets.size());
  MOE_DCHECK(batch.hidden_states.cols() == spec_.d_model);
  if (experts.empty()) return;
  const int64_t assignments = batch.offsets.back();
  inner_.Grow(assignments * padded_d_ff_);
  CutRows(batch.offsets);

  const int64_t per_output = spec_.gated ? 2 : 1;
  const int64_t up_units =
      CeilDiv(CeilDiv(spec_.d_ff, kPanelWidth) * per_output, kUnitPanels);
  const int64_t down_units =
      CeilDiv(CeilDiv(spec_.d_model, kPanelWidth), kUnitPanels);
  CutTasks(up_units, up_tasks_);
  CutTasks(down_units, down_tasks_);

  const bool in_place =
      std::all_of(strips_.begin(), strips_.end(), [&](const Strips& strips) {
        return strips.count == 0 ||
               ReadsInPlace(batch, strips.Rows(/*strip=*/0));
      });
  if (!in_place) {
    inputs_.Grow(assignments * padded_d_model_);
    parallel_for(
        static_cast<int64_t>(experts.size()),
        [&](int64_t expert, int /*worker*/) { PackRows(batch, expert); });
  }
  parallel_for(up_tasks_.first.back(), [&](int64_t index, int worker) {
    const Task task = TaskAt(up_tasks_, up_units, index);
    RunUp(experts[task.expert], batch, task, worker);
  });
  parallel_for(down_tasks_.first.back(), [&](int64_t index, int worker) {
    const Task task = TaskAt(down_tasks_, down_units, index);
    RunDown(experts[task.expert], task, worker, out);
  });
}

void ExpertRunner::Multiply(const PackedMatrix& matrix, const float* bias,
                            ConstMatrix x, ParallelFor parallel_for,
                            Matrix out) {
  MOE_DCHECK(x.cols() == matrix.layout.k && out.cols() == matrix.layout.n);
  MOE_DCHECK(x.rows() == out.rows());
  // The second half of an expert, whose inner values are x.
  spec_.d_model = matrix.layout.n;
  spec_.d_ff = matrix.layout.k;
  padded_d_ff_ = RoundUp(spec_.d_ff, kStepAlignment);
  const int32_t offsets[] = {0, static_cast<int32_t>(x.rows())};
  inner_.Grow(x.rows() * padded_d_ff_);
  CutRows(offsets);
  const Strips& strips = strips_.front();
  parallel_for(CeilDiv(strips.count, kBlockStrips), [&](int64_t block, int) {
    const int64_t end = std::min((block + 1) * kBlockStrips, strips.count);
    for (int64_t s = block * kBlockStrips; s < end; ++s) {
      const int64_t begin = strips.Begin(s);
      const float* rows[kMaxStripRows];
      for (int64_t r = 0; r < strips.Rows(s); ++r) rows[r] = x.Row(begin + r);
      InterleaveRows(rows, /*scales=*/nullptr, strips.Rows(s), spec_.d_ff,
                     padded_d_ff_, inner_.data() + begin * padded_d_ff_);
    }
  });
  const int64_t units = CeilDiv(matrix.panels, kUnitPanels);
  CutTasks(units, down_tasks_);
  const PackedExpert expert{.up = {}, .down = matrix, .down_bias = bias};
  parallel_for(down_tasks_.first.back(), [&](int64_t index, int worker) {
    RunDown(expert, TaskAt(down_tasks_, units, index), worker, out);
  });
}

}  // namespace moe
