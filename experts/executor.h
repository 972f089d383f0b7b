// Runs tasks on a fixed set of threads.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace moe {

// Thread-safe; but the callers of one Executor share its threads, so that
// concurrent ParallelFor calls slow each other.
class Executor {
 public:
  // Requires: num_threads >= 1. The thread that calls ParallelFor counts as one
  // of them.
  explicit Executor(int num_threads);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, worker) once for each task in [0, num_tasks), in any order,
  // and returns when all have returned. `worker` is in [0, num_threads) and no
  // two tasks run with the same worker at once: index scratch memory by it.
  // Requires: fn does not throw and does not call ParallelFor on the same
  // Executor.
  void ParallelFor(int64_t num_tasks,
                   absl::FunctionRef<void(int64_t task, int worker)> fn);

 private:
  struct Arena;
  const int num_threads_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace moe
