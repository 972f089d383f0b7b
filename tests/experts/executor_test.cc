#include "experts/executor.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::Eq;

class ExecutorTest : public ::testing::TestWithParam<int> {};

TEST_P(ExecutorTest, RunsEachTaskOnce) {
  Executor executor(GetParam());
  EXPECT_EQ(executor.num_threads(), GetParam());
  for (const int64_t num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
    executor.ParallelFor(num_tasks, [&](int64_t task, int) {
      ASSERT_GE(task, 0);
      ASSERT_LT(task, num_tasks);
      runs[static_cast<size_t>(task)].fetch_add(1);
    });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

TEST_P(ExecutorTest, NoTwoTasksShareAWorkerAtOnce) {
  Executor executor(GetParam());
  std::vector<std::atomic<int>> running(static_cast<size_t>(GetParam()));
  std::atomic<int> clashes = 0;
  executor.ParallelFor(2000, [&](int64_t, int worker) {
    ASSERT_GE(worker, 0);
    ASSERT_LT(worker, GetParam());
    auto& mine = running[static_cast<size_t>(worker)];
    if (mine.fetch_add(1) != 0) clashes.fetch_add(1);
    std::this_thread::yield();  // Makes an overlap likely, were it possible.
    mine.fetch_sub(1);
  });
  EXPECT_EQ(clashes.load(), 0);
}

TEST_P(ExecutorTest, WhatTasksWroteIsVisibleAfterwards) {
  Executor executor(GetParam());
  std::vector<int64_t> squares(500, -1);
  for (int repeat = 0; repeat < 20; ++repeat) {
    executor.ParallelFor(500, [&](int64_t task, int) {
      squares[static_cast<size_t>(task)] = task * task + repeat;
    });
    for (int64_t i = 0; i < 500; ++i) {
      ASSERT_EQ(squares[static_cast<size_t>(i)], i * i + repeat);
    }
  }
}

TEST_P(ExecutorTest, ServesSeveralCallers) {
  Executor executor(GetParam());
  constexpr int kCallers = 3;
  std::vector<std::vector<int>> results(kCallers, std::vector<int>(300, 0));
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back([&executor, &result = results[caller]] {
        executor.ParallelFor(300, [&result](int64_t task, int) {
          ++result[static_cast<size_t>(task)];
        });
      });
    }
  }
  for (const auto& result : results) EXPECT_THAT(result, Each(Eq(1)));
}

TEST_P(ExecutorTest, NoTwoTasksOfACallShareAWorkerBesideOtherCalls) {
  Executor executor(GetParam());
  std::atomic<int> clashes = 0;
  {
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 3; ++caller) {
      callers.emplace_back([&] {
        std::vector<std::atomic<int>> running(static_cast<size_t>(GetParam()));
        for (int64_t tasks = 0; tasks < 200; ++tasks) {
          executor.ParallelFor(tasks % 7, [&](int64_t, int worker) {
            auto& mine = running[static_cast<size_t>(worker)];
            if (mine.fetch_add(1) != 0) clashes.fetch_add(1);
            std::this_thread::yield();
            mine.fetch_sub(1);
          });
        }
      });
    }
  }
  EXPECT_EQ(clashes.load(), 0);
}

// Two nodes on whatever CPUs there are.
NumaNodes TwoNodes() {
  const std::vector<int> cpus = DetectNumaNodes("/nonexistent").front();
  return {{cpus.front()}, {cpus.back()}};
}

TEST_P(ExecutorTest, RunsTheTasksOfAllNodesOnce) {
  Executor executor(GetParam(), TwoNodes());
  const size_t nodes = executor.node_threads().size();
  EXPECT_EQ(nodes, GetParam() == 1 ? 1U : 2U);
  for (const std::vector<int64_t>& both :
       std::vector<std::vector<int64_t>>{{0, 0},
                                         {0, 1},
                                         {1, 1},
                                         {1, 2},
                                         {0, 50},
                                         {50, 50},
                                         {500, 501},
                                         {300, 1000}}) {
    for (const int way : {0, 1, 2}) {
      std::vector<int64_t> ends = both;
      if (way == 0 || nodes == 1) ends = {both.back()};
      const auto take_others = way == 1 ? Executor::TakeOthers::kAtTheEnd
                                        : Executor::TakeOthers::kNever;
      std::vector<std::atomic<int>> runs(static_cast<size_t>(ends.back()));
      std::atomic<int> clashes = 0;
      std::vector<std::atomic<int>> running(static_cast<size_t>(GetParam()));
      const auto fn = [&](int64_t task, int worker) {
        auto& mine = running[static_cast<size_t>(worker)];
        if (mine.fetch_add(1) != 0) clashes.fetch_add(1);
        runs[static_cast<size_t>(task)].fetch_add(1);
        mine.fetch_sub(1);
      };
      executor.ParallelFor(ends, fn, take_others);
      EXPECT_EQ(clashes.load(), 0);
      for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ExecutorTest, ::testing::Values(1, 2, 3, 8),
                         ::testing::PrintToStringParamName());

TEST(ExecutorSingleThreadTest, RunsOnTheCallingThreadInOrder) {
  Executor executor(1);
  std::vector<int64_t> order;
  executor.ParallelFor(5, [&](int64_t task, int worker) {
    EXPECT_EQ(worker, 0);
    order.push_back(task);
  });
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4));
}

struct ShareCase {
  int num_threads;
  std::vector<int> cpus;  // of each node
  std::vector<int> want;
};

TEST(ExecutorNodesTest, ThreadsAreSharedAsCpusAre) {
  for (const auto& [num_threads, cpus, want] : std::vector<ShareCase>{
           {8, {8}, {8}},
           {8, {4, 4}, {4, 4}},
           {4, {4, 4}, {2, 2}},
           {5, {4, 4}, {3, 2}},
           {8, {6, 2}, {6, 2}},
           {4, {30, 1}, {3, 1}},
           {6, {8, 8, 8}, {2, 2, 2}},
           {1, {1, 1}, {1}},
           {2, {1, 1, 1}, {2}},
           {16, {1, 1}, {8, 8}},
       }) {
    // Numbers of CPUs that no machine has: threads stay unbound.
    NumaNodes nodes;
    int cpu = 1 << 19;
    for (const int count : cpus) {
      nodes.emplace_back();
      for (int i = 0; i < count; ++i) nodes.back().push_back(cpu++);
    }
    const Executor executor(num_threads, nodes);
    EXPECT_THAT(executor.node_threads(), ElementsAreArray(want))
        << num_threads << " threads";
  }
}

TEST(ExecutorNodesTest, ThreadsAreBoundAndTheCallerIsNot) {
  const NumaNodes nodes = TwoNodes();
  const NumaNodes here = DetectNumaNodes("/nonexistent");
  Executor executor(2, nodes);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> by_others = 0;
  std::atomic<int> unbound = 0;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (by_others == 0 && std::chrono::steady_clock::now() < deadline) {
    const int64_t ends[] = {8, 16};
    executor.ParallelFor(ends, [&](int64_t, int) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::this_thread::get_id() == caller) return;
      by_others.fetch_add(1);
      const NumaNodes mine = DetectNumaNodes("/nonexistent");
      if (mine[0] != nodes[0] && mine[0] != nodes[1]) unbound.fetch_add(1);
    });
  }
  EXPECT_GT(by_others, 0);
  EXPECT_EQ(unbound, 0);
  EXPECT_EQ(DetectNumaNodes("/nonexistent"), here);
}

TEST(ExecutorNodesTest, ThreadsOfANodeTakeItsTasksFirst) {
  const NumaNodes nodes = TwoNodes();
  if (nodes[0] == nodes[1]) GTEST_SKIP() << "needs two CPUs";
  Executor executor(2, nodes);
  // A node's first task waits for the other one's: only a thread of each node
  // can make both.
  const int64_t ends[] = {1, 2};
  std::atomic<int> started = 0;
  std::vector<int> cpus(2, -1);
  std::thread([&] {
    BindThisThread(nodes[0]);
    executor.ParallelFor(ends, [&](int64_t task, int) {
      cpus[static_cast<size_t>(task)] = sched_getcpu();
      started.fetch_add(1);
      while (started < 2) std::this_thread::yield();
    });
  }).join();
  // The worker may be either's: the caller is on the first node's CPU.
  EXPECT_EQ(cpus[0], nodes[0][0]);
}

TEST(ExecutorDeathTest, NeedsAThread) {
  EXPECT_DEATH(Executor(0), "num_threads");
}

}  // namespace
}  // namespace moe
