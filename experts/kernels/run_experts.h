// Runs the packed experts of one layer over a batch: cuts the work into tasks
// of (expert, panels, rows) that keep every thread busy, whether one expert has
// all the rows or many have one each.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/expert_batch.h"
#include "experts/base/expert_spec.h"
#include "experts/base/matrix_view.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// One expert, or a slice of one: of both matrices the panels that one NUMA node
// holds. The memory belongs to the caller.
struct PackedExpert {
  // [d_ff, d_model]; gated: the panels of gate_proj and up_proj in turn, of the
  // same layout.
  PackedMatrix up;
  PackedMatrix down;  // [d_model, d_ff]
  // [panels * 16] in the order of the panels, zero beyond the outputs; null =
  // none. A slice has those of its panels.
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};

// Executor::ParallelFor, or anything that keeps its promises: the tasks before
// ends[0] are those of the first NUMA node, and so on; one end says that tasks
// belong to none.
using ParallelFor =
    absl::FunctionRef<void(absl::Span<const int64_t> ends,
                           absl::FunctionRef<void(int64_t task, int worker)>)>;

// Slices begin at multiples of this many panels.
inline constexpr int64_t kSlicePanels = kMaxPanelsAtOnce;

// Owns the scratch memory for Run.
//
// Thread-compatible: one Run at a time.
class ExpertRunner {
 public:
  // Requires: num_threads >= 1; `kernels` outlives this.
  ExpertRunner(const Kernels& kernels, int num_threads);

  // out[i] = expert(hidden_states[rows[i]] * input_scales[i]) for each
  // assignment i. The bytes of out[i] depend on that row and its expert alone.
  //
  // spec:     of the experts; may differ from one Run to the next.
  // experts:  as many as batch.offsets says, or slices of them,
  // [nodes][experts]:
  //           those of a node begin with the same panels and have as many.
  // out:      [assignments, d_model], overwritten.
  // parallel_for: runs fn(task, worker) with workers below num_threads.
  // Requires: a consistent batch; matrices of the shapes in `spec`.
  // Cost:     allocates only for more assignments or experts than ever before.
  void Run(const ExpertSpec& spec, absl::Span<const PackedExpert> experts,
           const ExpertBatch& batch, ParallelFor parallel_for, Matrix out);

  // out = x * matrix^T + bias: one linear map of all rows, such as a gate, with
  // the same promise about bytes.
  //
  // x:    [rows, k]
  // bias: as in PackedExpert, or null
  // out:  [rows, n], overwritten
  void Multiply(const PackedMatrix& matrix, const float* bias, ConstMatrix x,
                ParallelFor parallel_for, Matrix out);

 private:
  // How the rows of one expert are cut into strips that differ by at most one
  // row.
  struct Strips {
    int64_t first_row = 0;  // assignment
    int64_t count = 0;
    int64_t short_rows = 0;   // rows of a short strip
    int64_t long_strips = 0;  // strips that have one row more; they come first
    int64_t Begin(int64_t strip) const;  // assignment
    int64_t Rows(int64_t strip) const {
      return short_rows + (strip < long_strips ? 1 : 0);
    }
    int64_t NumRows() const { return count * short_rows + long_strips; }
    int64_t Blocks() const;  // of kBlockStrips strips
  };
  // One of the two products of an expert.
  struct Phase {
    std::vector<Strips> strips;  // [num_experts]
    // Where the strip is that begins with an assignment, [assignments].
    std::vector<const float*> inputs;
    int64_t row_floats = 0;  // of a row in `packed`, at most
    AlignedBuffer<float> packed;
  };
  // Slice s has the tasks [first[s], first[s + 1]), of units[s] units of panels
  // times kBlockStrips strips each; node n has the tasks before ends[n].
  struct Tasks {
    std::vector<int64_t> first;
    std::vector<int64_t> units;
    std::vector<int64_t> ends;
  };
  struct Task {
    int64_t slice;
    int64_t expert;
    int64_t first_unit;
    int64_t end_unit;
    int64_t first_strip;
    int64_t end_strip;
  };
  using MatrixOf = absl::FunctionRef<const PackedMatrix&(int64_t expert)>;
  using RowOf = absl::FunctionRef<const float*(int64_t assignment)>;

  void CutRows(absl::Span<const int32_t> offsets, MatrixOf matrix_of,
               Phase& phase);
  // units: of each node's slices.
  void CutTasks(absl::Span<const int64_t> units, const Phase& phase,
                Tasks& tasks);
  Task TaskAt(const Phase& phase, const Tasks& tasks,
              absl::Span<const int64_t> units, int64_t task) const;
  // Sets units_ for the slices that begin with `first`, num_experts to a node.
  void CountUnits(absl::Span<const PackedExpert> slices, int64_t num_experts,
                  PackedMatrix PackedExpert::*matrix);
  // Makes the strips of a phase.
  //
  // scales:  of the rows, or null
  // padding: zeros behind each row
  void PackStrips(Phase& phase, MatrixOf matrix_of, RowOf row_of,
                  const float* scales, int64_t padding,
                  ParallelFor parallel_for);
  // Units of panels whose outputs a worker's tiles hold for all rows of a task.
  int64_t UnitsAtOnce(const Phase& phase, const Task& task) const;
  // What MulPanels adds to: the bias, or zeros.
  static void StartTiles(const float* bias, int64_t first_panel,
                         int64_t num_panels, const Strips& strips,
                         const Task& task, float* tiles);
  // Multiplies panels [first_panel, first_panel + num_panels) by the strips of
  // a task into the worker's tiles, [unit][strip][panel][row][16].
  void MulPanels(const PackedMatrix& matrix, const float* bias,
                 int64_t first_panel, int64_t num_panels, const Phase& phase,
                 const Task& task, int worker);
  void RunUp(const PackedExpert& expert, const Task& task, int worker);
  void RunDown(const PackedExpert& expert, const Task& task, int worker,
               Matrix out);

  const Kernels& kernels_;
  const int num_threads_;
  // State of the current Run.
  ExpertSpec spec_;
  Phase up_;
  Phase down_;
  Tasks pack_tasks_;
  Tasks tasks_;
  std::vector<int64_t> units_;  // [nodes]
  int64_t inner_stride_ = 0;
  AlignedBuffer<float> inner_;    // [assignments][inner_stride_]
  AlignedBuffer<float> scratch_;  // [num_threads][kScratch]
};

}  // namespace moe
