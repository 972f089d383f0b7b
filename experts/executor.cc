#include "experts/executor.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "experts/base/check.h"

namespace moe {

struct Executor::Arena {
  explicit Arena(int num_threads) : arena(num_threads) {}
  tbb::task_arena arena;
};

Executor::Executor(int num_threads) : num_threads_(num_threads) {
  MOE_CHECK(num_threads >= 1);
  arena_ = std::make_unique<Arena>(num_threads);
}

Executor::~Executor() = default;

void Executor::ParallelFor(
    int64_t num_tasks, absl::FunctionRef<void(int64_t task, int worker)> fn) {
  if (num_threads_ == 1 || num_tasks == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  arena_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, num_tasks, 1),
        [&](const tbb::blocked_range<int64_t>& range) {
          const int worker = tbb::this_task_arena::current_thread_index();
          for (int64_t task = range.begin(); task < range.end(); ++task) {
            fn(task, worker);
          }
        },
        tbb::simple_partitioner());
  });
}

}  // namespace moe
