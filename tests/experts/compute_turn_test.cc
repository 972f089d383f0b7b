#include "experts/compute_turn.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(ComputeTurnTest, OneHasItAtATime) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  ComputeTurn turn;
  std::atomic<int> computing = 0;
  std::atomic<bool> alone = true;
  const auto compute = [&] {
    if (computing.fetch_add(1) != 0) alone = false;
    if (computing.fetch_sub(1) != 1) alone = false;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        turn.Take();
        compute();
        { const AwayFromCompute away(&turn); }
        compute();
        turn.GiveUp();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(alone);
}

TEST(ComputeTurnTest, OthersHaveItWhileOneIsAway) {
  ComputeTurn turn;
  turn.Take();
  {
    const AwayFromCompute away(&turn);
    std::thread other([&] {
      turn.Take();
      turn.GiveUp();
    });
    other.join();
  }
  turn.GiveUp();
}

TEST(ComputeTurnTest, WithoutTurnsNobodyWaits) {
  const AwayFromCompute away(nullptr);
}

}  // namespace
}  // namespace moe
