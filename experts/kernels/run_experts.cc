#include "experts/kernels/run_experts.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "experts/base/check.h"
#include "experts/base/rounding.h"

namespace moe {
namespace {

// A unit is the panels that a task multiplies between two activations.
constexpr int64_t kUnitPanels = kSlicePanels;
// Rows of a task, in strips: what its activations take of the L2 cache.
constexpr int64_t kBlockStrips = 16;
constexpr int64_t kBlockRows = kBlockStrips * kMaxStripRows;
// Steps of k that are unpacked at a time: 16 columns of them are half an L1
// cache, a multiple of every block.
constexpr int64_t kUnpackSteps = 256;
// The alignment of MulArgs::k_begin.
constexpr int64_t kCutAlignment = 128;
// Tasks per thread to aim at: the last one to finish makes the others wait for
// a small part of the whole.
constexpr int64_t kTasksPerThread = 12;
// To read the weights costs about as much as to multiply them by this many
// rows.
constexpr int64_t kReadRows = 4;

// Outputs that a worker forms at a time: what they take of the L2 cache.
constexpr int64_t kTileFloats = 8 * kBlockRows * kUnitPanels * kPanelWidth;
// An unpacked panel, with the scales and zero points of the smallest blocks.
constexpr int64_t kUnpackedPanel =
    (kUnpackSteps + kUnpackSteps / 32 * 2) * kPanelWidth;
constexpr int64_t kUnpackFloats = kUnitPanels * kUnpackedPanel;
constexpr int64_t kScratchFloats = kTileFloats + kUnpackFloats;

// What is the same for all panels and strips of a cut of k, [begin, end).
//
// unpacked: whether the panels are those of Unpack
MulArgs ArgsOfCut(const PackedLayout& layout, int64_t begin, int64_t end,
                  int64_t num_strips, bool unpacked) {
  MulArgs args;
  args.panel_stride = layout.panel_bytes();
  args.k_begin = begin;
  args.k_end = end;
  args.k = layout.k;
  args.group = layout.group;
  args.block = layout.block();
  args.scale_dtype = layout.scale_dtype;
  args.zero_points = layout.zero_points;
  args.fetch_step =
      CeilDiv(layout.line_offset(end) - layout.line_offset(begin),
              CeilDiv(end - begin, layout.steps_per_line()) * num_strips);
  if (unpacked) {
    args.panel_stride = kUnpackedPanel * sizeof(float);
    args.first_step = begin;
    args.group = layout.block();
    args.scale_dtype = DType::kF32;
  }
  return args;
}

// Unpacks a cut of `count` adjacent panels; returns `out`,
// [count][kUnpackedPanel].
//
// to_next: bytes from a line of them to the one to fetch meanwhile
const uint8_t* Unpack(const FormatKernels& format, const PackedLayout& layout,
                      const uint8_t* panels, int64_t count, int64_t begin,
                      int64_t end, int64_t to_next, float* out) {
  UnpackArgs args;
  args.k_begin = begin;
  args.k_end = end;
  args.group = layout.group;
  args.block = layout.block();
  args.scale_dtype = layout.scale_dtype;
  args.zero_points = layout.zero_points;
  for (int64_t i = 0; i < count; ++i) {
    args.panel = panels + i * layout.panel_bytes();
    args.fetch = args.panel + layout.line_offset(begin) + to_next;
    args.out = out + i * kUnpackedPanel;
    format.unpack(args);
  }
  return reinterpret_cast<const uint8_t*>(out);
}

// Multiplies `count` adjacent panels by one strip, as many at a time as there
// are kernels for.
//
// ahead: what a strip on its own fetches ahead, as FetchAhead::far; -1 =
//        args.fetch says what the strip fetches
void MulStrip(const MulFn (&muls)[3], int64_t count, int64_t ahead,
              const PackedLayout& layout, MulArgs args, float* tile) {
  const int64_t k_begin = args.k_begin;
  const int64_t k_end = args.k_end;
  const uint8_t* first = args.panels;
  const uint8_t* fetch = args.fetch;
  for (int64_t p = 0; p < count;) {
    int log_panels = 2;
    // There always is one for a single panel.
    while (log_panels > 0 &&
           (p + (1 << log_panels) > count || muls[log_panels] == nullptr)) {
      --log_panels;
    }
    const int64_t at_once = 1 << log_panels;
    args.panels = first + p * args.panel_stride;
    args.tile = tile + p * args.rows * kPanelWidth;
    if (ahead == 0) {
      args.fetch = args.panels;
      muls[log_panels](args);
    } else if (ahead > 0) {
      // The last part fetches the panels that come next.
      const int64_t of_panel = ahead >> log_panels;
      const int64_t last_part =
          std::max<int64_t>(
              0, k_end - of_panel / kLineBytes * layout.steps_per_line()) /
          kCutAlignment * kCutAlignment;
      args.fetch = args.panels + of_panel;
      if (last_part > 0) {
        args.k_end = last_part;
        muls[log_panels](args);
      }
      args.k_begin = last_part;
      args.k_end = k_end;
      args.fetch = args.panels + layout.line_offset(last_part) + of_panel +
                   (at_once - 1) * args.panel_stride;
      muls[log_panels](args);
      args.k_begin = k_begin;
    } else {
      args.fetch = fetch + p * args.panel_stride;
      muls[log_panels](args);
    }
    p += at_once;
  }
}

}  // namespace

int64_t ExpertRunner::Strips::Begin(int64_t strip) const {
  return first_row + strip * short_rows + std::min(strip, long_strips);
}

int64_t ExpertRunner::Strips::Blocks() const {
  return CeilDiv(count, kBlockStrips);
}

ExpertRunner::ExpertRunner(const Kernels& kernels, int num_threads)
    : kernels_(kernels),
      num_threads_(num_threads),
      scratch_(num_threads * kScratchFloats) {}

void ExpertRunner::CutRows(absl::Span<const int32_t> offsets,
                           MatrixOf matrix_of, Phase& phase) {
  const auto num_experts = static_cast<int64_t>(offsets.size()) - 1;
  phase.strips.resize(num_experts);
  phase.row_floats = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const PackedLayout& layout = matrix_of(e).layout;
    const FormatKernels& format = kernels_[layout.format];
    const int64_t rows = offsets[e + 1] - offsets[e];
    Strips& strips = phase.strips[e];
    strips.first_row = offsets[e];
    strips.count = CeilDiv(rows, format.max_rows);
    strips.short_rows = strips.count > 0 ? rows / strips.count : 0;
    strips.long_strips = rows - strips.short_rows * strips.count;
    phase.row_floats = std::max(phase.row_floats,
                                format.strip_floats(layout.k, layout.block()));
  }
  // Strips begin at whole lines.
  phase.row_floats = RoundUp(phase.row_floats, kPanelWidth);
}

void ExpertRunner::CutTasks(absl::Span<const int64_t> units, const Phase& phase,
                            Tasks& tasks) {
  const auto num_experts = static_cast<int64_t>(phase.strips.size());
  const auto num_nodes = static_cast<int64_t>(units.size());
  const int64_t all_units =
      std::accumulate(units.begin(), units.end(), int64_t{0});
  int64_t total = 0;
  for (const Strips& strips : phase.strips) {
    if (strips.count > 0) total += all_units * (strips.NumRows() + kReadRows);
  }
  const int64_t wanted = total / (num_threads_ * kTasksPerThread);
  tasks.first.resize(num_nodes * num_experts + 1);
  tasks.units.resize(num_nodes * num_experts);
  tasks.ends.resize(num_nodes);
  int64_t slice = 0;
  for (int64_t node = 0; node < num_nodes; ++node) {
    // A node may have nothing of a small matrix.
    const int64_t most = std::max<int64_t>(units[node], 1);
    for (const Strips& strips : phase.strips) {
      const int64_t cost_of_unit =
          std::min(strips.NumRows(), kBlockStrips * (strips.short_rows + 1)) +
          kReadRows;
      tasks.units[slice] = std::clamp<int64_t>(wanted / cost_of_unit, 1, most);
      tasks.first[slice + 1] =
          tasks.first[slice] +
          strips.Blocks() * CeilDiv(units[node], tasks.units[slice]);
      ++slice;
    }
    tasks.ends[node] = tasks.first[slice];
  }
}

void ExpertRunner::CountUnits(absl::Span<const PackedExpert> slices,
                              int64_t num_experts,
                              PackedMatrix PackedExpert::*matrix) {
  const auto num_slices = static_cast<int64_t>(slices.size());
  units_.resize(num_slices / num_experts);
  for (int64_t first = 0; first < num_slices; first += num_experts) {
    units_[first / num_experts] =
        CeilDiv((slices[first].*matrix).panels, kUnitPanels);
  }
}

ExpertRunner::Task ExpertRunner::TaskAt(const Phase& phase, const Tasks& tasks,
                                        absl::Span<const int64_t> units,
                                        int64_t task) const {
  const auto next =
      std::upper_bound(tasks.first.begin(), tasks.first.end(), task);
  const int64_t slice = next - tasks.first.begin() - 1;
  const auto num_experts = static_cast<int64_t>(phase.strips.size());
  const int64_t e = slice % num_experts;
  const Strips& strips = phase.strips[e];
  const int64_t index = task - tasks.first[slice];
  // The blocks of rows that share panels come one after the other.
  const int64_t first_unit = index / strips.Blocks() * tasks.units[slice];
  const int64_t first_strip = index % strips.Blocks() * kBlockStrips;
  return {
      .slice = slice,
      .expert = e,
      .first_unit = first_unit,
      .end_unit =
          std::min(first_unit + tasks.units[slice], units[slice / num_experts]),
      .first_strip = first_strip,
      .end_strip = std::min(first_strip + kBlockStrips, strips.count),
  };
}

void ExpertRunner::PackStrips(Phase& phase, MatrixOf matrix_of, RowOf row_of,
                              const float* scales, int64_t padding,
                              ParallelFor parallel_for) {
  const auto in_place = [&](int64_t e, int64_t rows) {
    const PackedLayout& layout = matrix_of(e).layout;
    return rows == 1 && scales == nullptr &&
           kernels_[layout.format].row_is_strip &&
           RoundUp(layout.k, kStepAlignment) <= layout.k + padding;
  };
  const int64_t rows =
      phase.strips.back().first_row + phase.strips.back().NumRows();
  phase.inputs.resize(rows);
  int64_t to_pack = 0;
  for (size_t e = 0; e < phase.strips.size(); ++e) {
    const Strips& strips = phase.strips[e];
    for (int64_t s = 0; s < strips.count; ++s) {
      const int64_t begin = strips.Begin(s);
      if (in_place(static_cast<int64_t>(e), strips.Rows(s))) {
        phase.inputs[begin] = row_of(begin);
      } else {
        phase.inputs[begin] = nullptr;
        ++to_pack;
      }
    }
  }
  if (to_pack == 0) return;
  float* packed = phase.packed.Grow(rows * phase.row_floats);
  constexpr int64_t kWhole[] = {1};
  CutTasks(kWhole, phase, pack_tasks_);
  parallel_for(pack_tasks_.ends, [&](int64_t index, int /*worker*/) {
    const Task task = TaskAt(phase, pack_tasks_, kWhole, index);
    const Strips& strips = phase.strips[task.expert];
    const PackedLayout& layout = matrix_of(task.expert).layout;
    for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
      const int64_t begin = strips.Begin(s);
      if (phase.inputs[begin] != nullptr) continue;
      const float* pointers[kMaxStripRows];
      for (int64_t r = 0; r < strips.Rows(s); ++r) {
        pointers[r] = row_of(begin + r);
      }
      PackRowsArgs args;
      args.rows = pointers;
      args.scales = scales != nullptr ? scales + begin : nullptr;
      args.num_rows = strips.Rows(s);
      args.k = layout.k;
      args.block = layout.block();
      args.strip = packed + begin * phase.row_floats;
      kernels_[layout.format].pack_rows(args);
      phase.inputs[begin] = args.strip;
    }
  });
}

int64_t ExpertRunner::UnitsAtOnce(const Phase& phase, const Task& task) const {
  const Strips& strips = phase.strips[task.expert];
  const int64_t rows =
      strips.Begin(task.end_strip) - strips.Begin(task.first_strip);
  return std::min(kTileFloats / (rows * kUnitPanels * kPanelWidth),
                  task.end_unit - task.first_unit);
}

void ExpertRunner::StartTiles(const float* bias, int64_t first_panel,
                              int64_t num_panels, const Strips& strips,
                              const Task& task, float* tiles) {
  const int64_t rows_of_task =
      strips.Begin(task.end_strip) - strips.Begin(task.first_strip);
  if (bias == nullptr) {
    std::fill_n(tiles, num_panels * rows_of_task * kPanelWidth, 0.0F);
    return;
  }
  for (int64_t p = 0; p < num_panels; p += kUnitPanels) {
    const int64_t count = std::min(kUnitPanels, num_panels - p);
    float* tile = tiles + p * rows_of_task * kPanelWidth;
    for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
      for (int64_t i = 0; i < count; ++i) {
        const float* values = bias + (first_panel + p + i) * kPanelWidth;
        for (int64_t r = 0; r < strips.Rows(s); ++r, tile += kPanelWidth) {
          std::copy_n(values, kPanelWidth, tile);
        }
      }
    }
  }
}

void ExpertRunner::MulPanels(const PackedMatrix& matrix, const float* bias,
                             int64_t first_panel, int64_t num_panels,
                             const Phase& phase, const Task& task, int worker) {
  const PackedLayout& layout = matrix.layout;
  const FormatKernels& format = kernels_[layout.format];
  const Strips& strips = phase.strips[task.expert];
  // Padding within the last line counts, so that all kernels add the same
  // zeros.
  const int64_t k_end = RoundUp(layout.k, layout.steps_per_line());
  const int64_t panel_bytes = layout.panel_bytes();
  const int64_t first_row = strips.Begin(task.first_strip);
  const int64_t rows_of_task = strips.Begin(task.end_strip) - first_row;
  float* tiles = scratch_.data() + worker * kScratchFloats;
  StartTiles(bias, first_panel, num_panels, strips, task, tiles);

  const bool unpack = rows_of_task > format.fused_rows;
  const auto& muls = !unpack               ? format.mul
                     : layout.has_scales() ? kernels_.mul_unpacked
                                           : kernels_[WeightFormat::kF32].mul;
  // A single strip needs each weight once: the whole of k, to stream few panels
  // at a time. More strips share a cut of k of all panels while their part of
  // it is in the L2 cache.
  const int64_t num_strips = task.end_strip - task.first_strip;
  const bool stream = num_strips == 1 && !unpack;
  const int64_t cut = stream ? k_end : unpack ? kUnpackSteps : format.cut_steps;
  for (int64_t k = 0; k < k_end; k += cut) {
    const int64_t end = std::min(k + cut, k_end);
    const int64_t cut_begin = layout.line_offset(k);
    const int64_t cut_end = layout.line_offset(end);
    MulArgs args = ArgsOfCut(layout, k, end, num_strips, unpack);
    for (int64_t p = 0; p < num_panels; p += kUnitPanels) {
      const int64_t count = std::min(kUnitPanels, num_panels - p);
      const uint8_t* panels = matrix.Panel(first_panel + p);
      // From a line of this unit to its like in the one to come: in the next
      // cut of the first one after the last one.
      const int64_t to_next = p + count < num_panels || end == k_end
                                  ? count * panel_bytes
                                  : cut_end - cut_begin - p * panel_bytes;
      args.panels = !unpack ? panels
                            : Unpack(format, layout, panels, count, k, end,
                                     to_next, tiles + kTileFloats);
      for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
        const int64_t begin = strips.Begin(s);
        args.rows = strips.Rows(s);
        const FetchAhead& ahead =
            args.rows == 1 ? format.fetch_for_row : format.fetch_for_rows;
        args.near_ahead = ahead.near;
        args.strip = phase.inputs[begin];
        // Each strip fetches its part of the panels to come.
        args.fetch =
            panels + to_next + cut_begin +
            (s - task.first_strip) * (cut_end - cut_begin) / num_strips;
        MulStrip(muls[args.rows], count, stream ? ahead.far : -1, layout, args,
                 tiles + (p * rows_of_task + (begin - first_row) * count) *
                             kPanelWidth);
      }
    }
  }
}

void ExpertRunner::RunUp(const PackedExpert& expert, const Task& task,
                         int worker) {
  const Strips& strips = up_.strips[task.expert];
  const int64_t per_output = spec_.gated ? 2 : 1;
  const int64_t units_at_once = UnitsAtOnce(up_, task);
  for (int64_t unit = task.first_unit; unit < task.end_unit;
       unit += units_at_once) {
    const int64_t first_panel = unit * kUnitPanels;
    const int64_t end_panel =
        std::min(std::min(unit + units_at_once, task.end_unit) * kUnitPanels,
                 expert.up.panels);
    MulPanels(expert.up, expert.up_bias, first_panel, end_panel - first_panel,
              up_, task, worker);
    float* tile = scratch_.data() + worker * kScratchFloats;
    for (int64_t panel = first_panel; panel < end_panel; panel += kUnitPanels) {
      const int64_t count = std::min(kUnitPanels, end_panel - panel);
      const int64_t outputs = count / per_output;
      const int64_t first_output = (expert.up.first_panel + panel) / per_output;
      for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
        const int64_t begin = strips.Begin(s);
        const int64_t rows = strips.Rows(s);
        kernels_.activate(spec_.activation, spec_.gated, outputs, rows, tile);
        for (int64_t p = 0; p < outputs; ++p) {
          const int64_t column = (first_output + p) * kPanelWidth;
          const int64_t columns = std::min(kPanelWidth, spec_.d_ff - column);
          for (int64_t r = 0; r < rows; ++r) {
            float* row = inner_.data() + (begin + r) * inner_stride_ + column;
            // The padding of a row is zero.
            std::fill(
                std::copy_n(tile + (p * rows + r) * kPanelWidth, columns, row),
                row + kPanelWidth, 0.0F);
          }
        }
        tile += count * rows * kPanelWidth;
      }
    }
  }
}

void ExpertRunner::RunDown(const PackedExpert& expert, const Task& task,
                           int worker, Matrix out) {
  const Strips& strips = down_.strips[task.expert];
  const int64_t units_at_once = UnitsAtOnce(down_, task);
  for (int64_t unit = task.first_unit; unit < task.end_unit;
       unit += units_at_once) {
    const int64_t first_panel = unit * kUnitPanels;
    const int64_t end_panel =
        std::min(std::min(unit + units_at_once, task.end_unit) * kUnitPanels,
                 expert.down.panels);
    MulPanels(expert.down, expert.down_bias, first_panel,
              end_panel - first_panel, down_, task, worker);
    const float* tile = scratch_.data() + worker * kScratchFloats;
    for (int64_t panel = first_panel; panel < end_panel; panel += kUnitPanels) {
      const int64_t count = std::min(kUnitPanels, end_panel - panel);
      for (int64_t s = task.first_strip; s < task.end_strip; ++s) {
        const int64_t begin = strips.Begin(s);
        const int64_t rows = strips.Rows(s);
        // Row by row: what is written lies together.
        for (int64_t r = 0; r < rows; ++r) {
          float* row = out.Row(begin + r);
          for (int64_t p = 0; p < count; ++p) {
            const int64_t column =
                (expert.down.first_panel + panel + p) * kPanelWidth;
            std::copy_n(tile + (p * rows + r) * kPanelWidth,
                        std::min(kPanelWidth, spec_.d_model - column),
                        row + column);
          }
        }
        tile += count * rows * kPanelWidth;
      }
    }
  }
}

void ExpertRunner::Run(const ExpertSpec& spec,
                       absl::Span<const PackedExpert> experts,
                       const ExpertBatch& batch, ParallelFor parallel_for,
                       Matrix out) {
  spec_ = spec;
  MOE_DCHECK(batch.hidden_states.cols() == spec_.d_model);
  if (experts.empty()) return;
  const auto num_experts = static_cast<int64_t>(batch.offsets.size()) - 1;
  MOE_DCHECK(num_experts > 0 &&
             static_cast<int64_t>(experts.size()) % num_experts == 0);
  // All slices of an expert have its layout.
  const auto up_of = [&](int64_t e) -> const PackedMatrix& {
    return experts[e].up;
  };
  const auto down_of = [&](int64_t e) -> const PackedMatrix& {
    return experts[e].down;
  };
  CutRows(batch.offsets, up_of, up_);
  CutRows(batch.offsets, down_of, down_);
  inner_stride_ = RoundUp(spec_.d_ff, kPanelWidth);
  inner_.Grow(batch.offsets.back() * inner_stride_);

  PackStrips(
      up_, up_of,
      [&](int64_t i) { return batch.hidden_states.Row(batch.rows[i]); },
      batch.input_scales.empty() ? nullptr : batch.input_scales.data(),
      /*padding=*/0, parallel_for);
  CountUnits(experts, num_experts, &PackedExpert::up);
  CutTasks(units_, up_, tasks_);
  parallel_for(tasks_.ends, [&](int64_t index, int worker) {
    const Task task = TaskAt(up_, tasks_, units_, index);
    RunUp(experts[task.slice], task, worker);
  });

  PackStrips(
      down_, down_of,
      [&](int64_t i) { return inner_.data() + i * inner_stride_; },
      /*scales=*/nullptr, /*padding=*/inner_stride_ - spec_.d_ff, parallel_for);
  CountUnits(experts, num_experts, &PackedExpert::down);
  CutTasks(units_, down_, tasks_);
  parallel_for(tasks_.ends, [&](int64_t index, int worker) {
    const Task task = TaskAt(down_, tasks_, units_, index);
    RunDown(experts[task.slice], task, worker, out);
  });
}

void ExpertRunner::Multiply(const PackedMatrix& matrix, const float* bias,
                            ConstMatrix x, ParallelFor parallel_for,
                            Matrix out) {
  MOE_DCHECK(x.cols() == matrix.layout.k && out.cols() == matrix.layout.n);
  MOE_DCHECK(x.rows() == out.rows());
  // The second half of an expert, whose inner values are x.
  spec_.d_model = matrix.layout.n;
  const auto down_of = [&](int64_t) -> const PackedMatrix& { return matrix; };
  const int32_t offsets[] = {0, static_cast<int32_t>(x.rows())};
  CutRows(offsets, down_of, down_);
  PackStrips(
      down_, down_of, [&](int64_t i) { return x.Row(i); }, /*scales=*/nullptr,
      /*padding=*/0, parallel_for);
  const PackedExpert expert{.up = {}, .down = matrix, .down_bias = bias};
  CountUnits({&expert, 1}, /*num_experts=*/1, &PackedExpert::down);
  CutTasks(units_, down_, tasks_);
  parallel_for(tasks_.ends, [&](int64_t index, int worker) {
    RunDown(expert, TaskAt(down_, tasks_, units_, index), worker, out);
  });
}

}  // namespace moe
