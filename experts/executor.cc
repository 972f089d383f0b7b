#include "experts/executor.h"

#include <sched.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_scheduler_observer.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "absl/container/fixed_array.h"
#include "experts/base/check.h"

namespace moe {
namespace {

// Calls that need no memory of their own for this many nodes.
constexpr size_t kUsualNodes = 16;

// Threads of each node, in proportion to its CPUs, but one at least.
std::vector<int> ShareThreads(int num_threads, const NumaNodes& nodes) {
  if (nodes.size() < 2 || static_cast<size_t>(num_threads) < nodes.size()) {
    return {num_threads};
  }
  std::vector<int> threads(nodes.size(), 1);
  const auto cpus_per_thread = [&](size_t node) {
    return static_cast<double>(nodes[node].size()) / threads[node];
  };
  for (auto left = num_threads - static_cast<int>(nodes.size()); left > 0;
       --left) {
    size_t fewest = 0;
    for (size_t node = 1; node < nodes.size(); ++node) {
      if (cpus_per_thread(node) > cpus_per_thread(fewest)) fewest = node;
    }
    ++threads[fewest];
  }
  return threads;
}

// Binds the workers of an arena to the CPUs of their nodes.
class NodeBinder final : public tbb::task_scheduler_observer {
 public:
  NodeBinder(tbb::task_arena& arena, const NumaNodes& nodes,
             absl::Span<const int> node_threads)
      : tbb::task_scheduler_observer(arena), nodes_(nodes) {
    for (size_t node = 0; node < nodes.size(); ++node) {
      node_of_worker_.insert(node_of_worker_.end(),
                             static_cast<size_t>(node_threads[node]), node);
    }
    observe(true);
  }
  ~NodeBinder() override { observe(false); }
  NodeBinder(const NodeBinder&) = delete;
  NodeBinder& operator=(const NodeBinder&) = delete;

  void on_scheduler_entry(bool is_worker) override {
    if (!is_worker) return;
    const int worker = tbb::this_task_arena::current_thread_index();
    BindThisThread(nodes_[node_of_worker_[static_cast<size_t>(worker)]]);
  }

 private:
  const NumaNodes nodes_;
  std::vector<size_t> node_of_worker_;
};

}  // namespace

struct Executor::Threads {
  // The node of the calling thread. Whoever calls ParallelFor may be anywhere.
  size_t NodeHere() const {
    const auto cpu = static_cast<size_t>(std::max(sched_getcpu(), 0));
    return cpu < node_of_cpu.size() ? node_of_cpu[cpu] : 0;
  }

  tbb::task_arena arena;
  // With more than one node:
  std::vector<size_t> node_of_cpu;
  std::optional<NodeBinder> binder;
};

Executor::Executor(int num_threads, const NumaNodes& nodes)
    : num_threads_(num_threads) {
  MOE_CHECK(num_threads >= 1);
  node_threads_ = ShareThreads(num_threads, nodes);
  threads_ = std::make_unique<Threads>();
  threads_->arena.initialize(num_threads);
  if (node_threads_.size() < 2) return;
  nodes_ = nodes;
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (const int cpu : nodes[node]) {
      const auto index = static_cast<size_t>(cpu);
      if (threads_->node_of_cpu.size() <= index) {
        threads_->node_of_cpu.resize(index + 1);
      }
      threads_->node_of_cpu[index] = node;
    }
  }
  threads_->binder.emplace(threads_->arena, nodes, node_threads_);
}

Executor::~Executor() = default;

void Executor::ParallelFor(
    int64_t num_tasks, absl::FunctionRef<void(int64_t task, int worker)> fn) {
  if (num_threads_ == 1 || num_tasks == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  if (node_threads_.size() > 1) {
    absl::FixedArray<int64_t, kUsualNodes> ends(node_threads_.size());
    int64_t threads = 0;
    for (size_t node = 0; node < ends.size(); ++node) {
      threads += node_threads_[node];
      ends[node] = num_tasks * threads / num_threads_;
    }
    ParallelFor(ends, fn);
    return;
  }
  threads_->arena.execute([&] {
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

void Executor::ParallelFor(absl::Span<const int64_t> ends,
                           absl::FunctionRef<void(int64_t task, int worker)> fn,
                           TakeOthers take_others) {
  if (ends.size() == 1 || ends.back() == 1) {
    ParallelFor(ends.back(), fn);
    return;
  }
  MOE_DCHECK(ends.size() == node_threads_.size());
  // The tasks of a node that no thread has taken yet, on a cache line of its
  // own.
  struct alignas(64) Queue {
    std::atomic<int64_t> next;
    int64_t end;
  };
  absl::FixedArray<Queue, kUsualNodes> queues(ends.size());
  for (size_t node = 0; node < ends.size(); ++node) {
    queues[node].next.store(node == 0 ? 0 : ends[node - 1],
                            std::memory_order_relaxed);
    queues[node].end = ends[node];
  }
  // Runs the next task of a node; false if there is none.
  const auto run_next = [&](Queue& queue) {
    const int64_t task = queue.next.fetch_add(1, std::memory_order_relaxed);
    if (task >= queue.end) return false;
    fn(task, tbb::this_task_arena::current_thread_index());
    return true;
  };
  const auto run_all = [&] {
    for (Queue& queue : queues) {
      while (run_next(queue)) {
      }
    }
  };
  threads_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int>(0, num_threads_, 1),
        [&](const tbb::blocked_range<int>& /*thread*/) {
          // Each time anew, since the caller may have been moved.
          while (run_next(queues[threads_->NodeHere()])) {
          }
          if (take_others == TakeOthers::kAtTheEnd) run_all();
        },
        tbb::simple_partitioner());
    // What is left of nodes whose threads have not come.
    run_all();
  });
}

}  // namespace moe
