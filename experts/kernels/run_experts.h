// Runs the packed experts of one layer over a batch: cuts the work into tasks
// of (expert, panels, rows) that keep every thread busy, whether one expert has
// all the rows or many have one each.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_shard.h"
#include "experts/expert_spec.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// One expert; the memory belongs to the caller.
struct PackedExpert {
  // [d_ff, d_model]; gated: the panels of gate_proj and up_proj in turn, of the
  // same layout.
  PackedMatrix up;
  PackedMatrix down;  // [d_model, d_ff]
  // [panels * 16] in the order of the panels, zero beyond the outputs; null =
  // none.
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};

// Executor::ParallelFor, or anything that keeps its promises.
using ParallelFor = absl::FunctionRef<void(
    int64_t num_tasks, absl::FunctionRef<void(int64_t task, int worker)> fn)>;

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
  // experts:  as many as batch.offsets says.
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
  };
  // The tasks of one phase: expert e has the tasks [first[e], first[e + 1]), of
  // `units` units of panels times kBlockStrips strips each.
  struct Tasks {
    std::vector<int64_t> first;
    std::vector<int64_t> units;
  };
  struct Task {
    int64_t expert;
    int64_t first_unit;
    int64_t end_unit;
    int64_t first_strip;
    int64_t end_strip;
  };

  void CutRows(absl::Span<const int32_t> offsets);
  void CutTasks(int64_t units, Tasks& tasks);
  Task TaskAt(const Tasks& tasks, int64_t units, int64_t task) const;
  int64_t BlocksOf(int64_t expert) const;

  bool ReadsInPlace(const ExpertBatch& batch, int64_t rows) const;
  void PackRows(const ExpertBatch& batch, int64_t expert);
  // Multiplies panels [panel, panel + count) by the strips of a task into the
  // worker's tile.
  void MulUnit(const PackedMatrix& matrix, const float* bias, int64_t panel,
               int64_t count, const Task& task, const ExpertBatch* batch,
               const float* strips, int worker);
  void RunUp(const PackedExpert& expert, const ExpertBatch& batch,
             const Task& task, int worker);
  void RunDown(const PackedExpert& expert, const Task& task, int worker,
               Matrix out);

  const Kernels& kernels_;
  const int num_threads_;
  // Of the current Run.
  ExpertSpec spec_;
  int64_t padded_d_model_ = 0;
  int64_t padded_d_ff_ = 0;
  std::vector<Strips> strips_;  // [num_experts]
  Tasks up_tasks_;
  Tasks down_tasks_;
  // [padded_d_model or padded_d_ff][rows] for each strip, one after the other.
  AlignedBuffer<float> inputs_;
  AlignedBuffer<float> inner_;
  AlignedBuffer<float> scratch_;  // [num_threads][kScratch]
};

}  // namespace moe
