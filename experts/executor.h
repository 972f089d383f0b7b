// Runs tasks on a fixed set of threads.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/cpu.h"

namespace moe {

// Thread-safe; but the callers of one Executor share its threads, so that
// concurrent ParallelFor calls slow each other.
class Executor {
 public:
  // nodes: shared by the threads in proportion to their CPUs, to which the
  //        threads are bound then. With one node, or fewer threads than nodes,
  //        all count as one node and threads run where they like.
  // Requires: num_threads >= 1. The thread that calls ParallelFor counts as one
  // of them; it is never bound.
  explicit Executor(int num_threads, const NumaNodes& nodes = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int num_threads() const { return num_threads_; }
  // [nodes], each at least 1.
  absl::Span<const int> node_threads() const { return node_threads_; }

  // Calls fn(task, worker) once for each task in [0, num_tasks), in any order,
  // and returns when all have returned. `worker` is in [0, num_threads) and no
  // two tasks run with the same worker at once: index scratch memory by it.
  // Tasks are shared by the nodes as the threads are: memory that a task is the
  // first to write will be near to the task of the same number, next time.
  // Requires: fn does not throw and does not call ParallelFor on the same
  // Executor.
  void ParallelFor(int64_t num_tasks,
                   absl::FunctionRef<void(int64_t task, int worker)> fn);

  // Whether threads that have nothing left to do take tasks of other nodes.
  // Never: as long as a node has a thread that runs; for tasks that are the
  // first to write memory, which thereby becomes that node's.
  enum class TakeOthers { kAtTheEnd, kNever };

  // The same for tasks [0, ends.back()), of which [ends[n - 1], ends[n]) are
  // for the threads of node n. One end: as above.
  // Requires: as many ends as nodes, or one.
  void ParallelFor(absl::Span<const int64_t> ends,
                   absl::FunctionRef<void(int64_t task, int worker)> fn,
                   TakeOthers take_others = TakeOthers::kAtTheEnd);

 private:
  struct Threads;
  const int num_threads_;
  std::vector<int> node_threads_;
  std::unique_ptr<Threads> threads_;
};

}  // namespace moe
