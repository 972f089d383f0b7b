// Runs tasks on a fixed set of threads.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "experts/base/cpu.h"

namespace moe {

// Thread-safe: several threads may be in ParallelFor at once. They share the
// threads of the executor, so that their calls slow each other; a thread that
// waits for its own tasks may run those of another call meanwhile.
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
  // The CPUs of each; empty if all threads count as one node.
  const NumaNodes& nodes() const { return nodes_; }

  // Calls fn(task, worker) once for each task in [0, num_tasks), in any order,
  // and returns when all have returned. `worker` is in [0, num_threads) and no
  // two tasks of one call run with the same worker at once: index scratch
  // memory by it, which is the call's alone. Calls of several threads may use
  // the same worker at once: few tasks run on the thread that calls.
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
  NumaNodes nodes_;
  std::unique_ptr<Threads> threads_;
};

}  // namespace moe
