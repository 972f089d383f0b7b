#include "experts/executor.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::Each;
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

TEST(ExecutorDeathTest, NeedsAThread) {
  EXPECT_DEATH(Executor(0), "num_threads");
}

}  // namespace
}  // namespace moe
