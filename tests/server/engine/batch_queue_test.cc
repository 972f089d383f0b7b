#include "server/engine/batch_queue.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Layers for keys; only the addresses count.
const int kLayers[3] = {};

SteadyTime At(std::chrono::nanoseconds since_start) {
  return SteadyTime(std::chrono::hours(1)) + since_start;
}

bool All(const BatchItem&) { return true; }

// A queue, a clock that the test sets, and requests with names.
class BatchQueueTest : public ::testing::Test {
 protected:
  void Limit(int64_t max_batch_tokens, std::chrono::nanoseconds delay = {},
             int64_t max_queue_tokens = 1'000'000) {
    queue_.emplace(BatchLimits{.max_batch_tokens = max_batch_tokens,
                               .max_queue_delay = delay,
                               .max_queue_tokens = max_queue_tokens});
  }

  bool PushKey(const std::string& name, int64_t tokens, const BatchKey& key,
               SteadyTime deadline = SteadyTime::max()) {
    BatchItem& item =
        items_.emplace_back(key, tokens, deadline, /*owner=*/nullptr);
    names_[&item] = name;
    return queue_->Push(&item, now_);
  }
  bool Push(const std::string& name, int64_t tokens,
            const void* layer = &kLayers[0]) {
    return PushKey(name, tokens, {.layer = layer});
  }
  void PushUntil(const std::string& name, int64_t tokens, SteadyTime deadline,
                 const void* layer = &kLayers[0]) {
    ASSERT_TRUE(PushKey(name, tokens, {.layer = layer}, deadline));
  }

  // The next batch, as "name[first,end)", with a "." after its last row.
  std::vector<std::string> Pop(
      absl::FunctionRef<bool(const BatchItem&)> wanted = All) {
    queue_->Pop(now_, wanted, &batch_);
    std::vector<std::string> slices;
    for (const BatchSlice& slice : batch_.slices) {
      slices.push_back(names_.at(slice.item) + "[" +
                       std::to_string(slice.first) + "," +
                       std::to_string(slice.first + slice.count) + ")" +
                       (slice.last ? "." : ""));
    }
    return slices;
  }
  std::vector<std::string> Dropped() const {
    std::vector<std::string> names;
    for (const BatchItem* item : batch_.dropped) {
      names.push_back(names_.at(item));
    }
    return names;
  }

  std::deque<BatchItem> items_;  // keeps addresses
  std::map<const BatchItem*, std::string> names_;
  std::optional<BatchQueue> queue_;
  SteadyTime now_ = At(seconds(0));
  Batch batch_;
};

TEST_F(BatchQueueTest, RequestsThatWaitTogetherRunTogether) {
  Limit(16);
  Push("a", 1);
  Push("b", 2);
  Push("c", 3);
  EXPECT_THAT(Pop(), ElementsAre("a[0,1).", "b[0,2).", "c[0,3)."));
  EXPECT_EQ(batch_.tokens, 6);
  EXPECT_TRUE(queue_->empty());
  EXPECT_EQ(queue_->tokens(), 0);
  EXPECT_THAT(Pop(), IsEmpty());
}

TEST_F(BatchQueueTest, OnlyEqualKeysShareABatch) {
  Limit(16);
  Push("a", 1, &kLayers[0]);
  Push("b", 1, &kLayers[1]);
  PushKey("c", 1, {.layer = &kLayers[0], .given_k = 2});
  PushKey("d", 1, {.layer = &kLayers[0], .given_k = 4});
  PushKey("e", 1, {.layer = &kLayers[0], .route_only = true});
  Push("f", 1, &kLayers[0]);
  EXPECT_THAT(Pop(), ElementsAre("a[0,1).", "f[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("b[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("c[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("d[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("e[0,1)."));
}

TEST_F(BatchQueueTest, BatchesAreNoLargerThanAllowed) {
  Limit(4);
  for (const char* name : {"a", "b", "c", "d", "e"}) Push(name, 1);
  EXPECT_THAT(Pop(), ElementsAre("a[0,1).", "b[0,1).", "c[0,1).", "d[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("e[0,1)."));
}

TEST_F(BatchQueueTest, LargeRequestAloneUsesWholeBatches) {
  Limit(8);
  Push("a", 20);
  EXPECT_THAT(Pop(), ElementsAre("a[0,8)"));
  EXPECT_THAT(Pop(), ElementsAre("a[8,16)"));
  EXPECT_THAT(Pop(), ElementsAre("a[16,20)."));
  EXPECT_TRUE(queue_->empty());
  EXPECT_EQ(queue_->tokens(), 0);
}

TEST_F(BatchQueueTest, LargeRequestLeavesRoomForSmallOnes) {
  Limit(8);
  Push("large", 100);
  Push("a", 1);
  Push("b", 1);
  // Everybody else, a turn of 2 for the large one, and what is left.
  EXPECT_THAT(Pop(), ElementsAre("a[0,1).", "b[0,1).", "large[0,6)"));
}

TEST_F(BatchQueueTest, SmallOnesDoNotStarveALargeOne) {
  Limit(8);
  Push("large", 20);
  now_ += BatchQueue::kPatience;
  int64_t progress = 0;
  for (int batch = 0; batch < 10; ++batch) {
    for (int i = 0; i < 8; ++i) Push("small", 1);
    now_ += microseconds(1);
    Pop();
    for (const BatchSlice& slice : batch_.slices) {
      if (slice.item == &items_.front()) progress += slice.count;
    }
  }
  EXPECT_GE(progress, 6) << "eight new ones before each batch of eight";
}

TEST_F(BatchQueueTest, SmallOneOvertakesLargeOnes) {
  Limit(8);
  for (const char* name : {"p", "q", "r", "s", "t", "u"}) Push(name, 1000);
  now_ += BatchQueue::kPatience / 4;
  Push("small", 1);
  EXPECT_THAT(Pop(), ElementsAre("small[0,1).", "p[0,2)", "q[0,2)", "r[0,2)",
                                 "s[0,1)"));
}

TEST_F(BatchQueueTest, SmallOnesDoNotOvertakeForever) {
  Limit(8);
  Push("large", 1000, &kLayers[0]);
  int overtaken = 0;
  for (; overtaken < 1000; ++overtaken) {
    Push("small", 1, &kLayers[1]);
    if (Pop().front() == "large[0,8)") break;
    now_ += milliseconds(100);
  }
  EXPECT_GT(overtaken, 0);
  EXPECT_LE(now_, At(BatchQueue::kPatience));
}

TEST_F(BatchQueueTest, LargeOnesTakeTurns) {
  Limit(8);
  for (const char* name : {"p", "q", "r", "s", "t", "u"}) Push(name, 1000);
  EXPECT_THAT(Pop(), ElementsAre("p[0,2)", "q[0,2)", "r[0,2)", "s[0,2)"));
  // Who has begun goes on, until the others have waited long enough.
  now_ += 2 * BatchQueue::kPatience;
  EXPECT_THAT(Pop(), ElementsAre("p[2,4)", "q[2,4)", "r[2,4)", "s[2,4)"));
  EXPECT_THAT(Pop(), ElementsAre("t[0,2)", "u[0,2)", "p[4,6)", "q[4,6)"));
}

TEST_F(BatchQueueTest, RequestCutForWantOfRoomKeepsItsPlace) {
  Limit(8);
  Push("a", 1);
  Push("b", 2);
  Push("c", 2);
  Push("d", 2);
  Push("e", 2);
  now_ += microseconds(1);
  Push("f", 2);
  EXPECT_THAT(
      Pop(), ElementsAre("a[0,1).", "b[0,2).", "c[0,2).", "d[0,2).", "e[0,1)"));
  EXPECT_THAT(Pop(), ElementsAre("e[1,2).", "f[0,2)."));
}

TEST_F(BatchQueueTest, EarlierDeadlineGoesFirst) {
  Limit(1);
  PushUntil("late", 1, At(milliseconds(900)));
  PushUntil("early", 1, At(milliseconds(100)));
  PushUntil("other layer", 1, At(milliseconds(500)), &kLayers[1]);
  EXPECT_THAT(Pop(), ElementsAre("early[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("other layer[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("late[0,1)."));
}

TEST_F(BatchQueueTest, WithoutDeadlinesTheOldestLayerGoesFirst) {
  Limit(16);
  Push("a", 1, &kLayers[1]);
  now_ += microseconds(1);
  Push("b", 1, &kLayers[0]);
  now_ += microseconds(1);
  Push("c", 1, &kLayers[1]);
  EXPECT_THAT(Pop(), ElementsAre("a[0,1).", "c[0,1)."));
  EXPECT_THAT(Pop(), ElementsAre("b[0,1)."));
}

TEST_F(BatchQueueTest, DeadlinesDoNotStarveThoseWithout) {
  Limit(1);
  Push("patient", 1);
  for (int i = 0; i < 200; ++i) {
    now_ += milliseconds(20);
    PushUntil("urgent", 1, now_ + milliseconds(100), &kLayers[1]);
    if (Pop() == std::vector<std::string>{"patient[0,1)."}) {
      EXPECT_LE(now_, At(2 * BatchQueue::kPatience));
      return;
    }
  }
  FAIL() << "never had its turn";
}

TEST_F(BatchQueueTest, UnwantedRequestsAreDroppedNotRun) {
  Limit(2);
  Push("a", 1);
  Push("gone", 1);
  Push("b", 1);
  Push("c", 1);
  const auto wanted = [this](const BatchItem& item) {
    return names_.at(&item) != "gone";
  };
  EXPECT_THAT(Pop(wanted), ElementsAre("a[0,1).", "b[0,1)."));
  EXPECT_THAT(Dropped(), ElementsAre("gone"));
  EXPECT_EQ(queue_->tokens(), 1);
}

TEST_F(BatchQueueTest, QueueOfUnwantedRequestsGivesWayToTheNext) {
  Limit(4);
  PushUntil("gone", 3, At(milliseconds(1)));
  Push("a", 1, &kLayers[1]);
  const auto wanted = [this](const BatchItem& item) {
    return names_.at(&item) != "gone";
  };
  EXPECT_THAT(Pop(wanted), ElementsAre("a[0,1)."));
  EXPECT_THAT(Dropped(), ElementsAre("gone"));
  EXPECT_TRUE(queue_->empty());
  EXPECT_EQ(queue_->tokens(), 0);
}

TEST_F(BatchQueueTest, RestOfALargeRequestCanBeDropped) {
  Limit(4);
  Push("large", 10);
  EXPECT_THAT(Pop(), ElementsAre("large[0,4)"));
  EXPECT_THAT(Pop([](const BatchItem&) { return false; }), IsEmpty());
  EXPECT_THAT(Dropped(), ElementsAre("large"));
  EXPECT_TRUE(queue_->empty());
  EXPECT_EQ(queue_->tokens(), 0);
}

TEST_F(BatchQueueTest, RefusesWhatExceedsTheBound) {
  Limit(4, {}, /*max_queue_tokens=*/6);
  EXPECT_TRUE(Push("a", 4));
  EXPECT_FALSE(Push("b", 3));
  EXPECT_TRUE(Push("c", 2));
  EXPECT_FALSE(Push("d", 1));
  Pop();
  EXPECT_TRUE(Push("e", 1));
}

TEST_F(BatchQueueTest, EmptyQueueTakesAnySize) {
  Limit(4, {}, /*max_queue_tokens=*/6);
  EXPECT_TRUE(Push("a", 100));
  EXPECT_FALSE(Push("b", 1));
}

TEST_F(BatchQueueTest, RequestsWithoutTokensCountAsOne) {
  Limit(2, {}, /*max_queue_tokens=*/3);
  EXPECT_TRUE(Push("a", 0));
  EXPECT_TRUE(Push("b", 0));
  EXPECT_TRUE(Push("c", 0));
  EXPECT_FALSE(Push("d", 0));
  EXPECT_THAT(Pop(), ElementsAre("a[0,0).", "b[0,0)."));
  EXPECT_EQ(batch_.tokens, 0);
  EXPECT_THAT(Pop(), ElementsAre("c[0,0)."));
  EXPECT_EQ(queue_->tokens(), 0);
}

TEST_F(BatchQueueTest, NothingWaitsNothingStarts) {
  Limit(4, milliseconds(2));
  EXPECT_EQ(queue_->StartTime(/*engine_idle=*/true), std::nullopt);
  EXPECT_EQ(queue_->StartTime(/*engine_idle=*/false), std::nullopt);
}

TEST_F(BatchQueueTest, IdleEngineStartsAtOnce) {
  Limit(4, milliseconds(2));
  Push("a", 1);
  EXPECT_LE(queue_->StartTime(/*engine_idle=*/true), now_);
}

TEST_F(BatchQueueTest, BusyEngineWaitsForCompanyButNotLonger) {
  Limit(4, milliseconds(2));
  Push("a", 1);
  const SteadyTime arrival = now_;
  now_ += milliseconds(1);
  Push("b", 1);
  Push("c", 1, &kLayers[1]);
  EXPECT_EQ(queue_->StartTime(/*engine_idle=*/false),
            arrival + milliseconds(2));
}

TEST_F(BatchQueueTest, FullBatchStartsAtOnce) {
  Limit(4, milliseconds(2));
  Push("a", 1);
  Push("b", 3, &kLayers[1]);
  EXPECT_GT(queue_->StartTime(/*engine_idle=*/false), now_);
  Push("c", 1, &kLayers[1]);
  EXPECT_LE(queue_->StartTime(/*engine_idle=*/false), now_);
}

TEST_F(BatchQueueTest, WhatIsLeftDoesNotWaitAgain) {
  Limit(4, milliseconds(2));
  for (int i = 0; i < 5; ++i) Push("a", 1);
  Pop();
  EXPECT_LE(queue_->StartTime(/*engine_idle=*/false), now_);
}

// Whatever comes, each row of each request runs exactly once and in order, no
// batch is too large, and the counts agree.
TEST_F(BatchQueueTest, EveryRowRunsOnceInOrder) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t max_batch_tokens = draw(1, 20);
    Limit(max_batch_tokens, microseconds(draw(0, 3)));
    items_.clear();
    std::map<const BatchItem*, int64_t> done;
    int64_t waiting = 0;
    const auto run = [&] {
      queue_->Pop(now_, All, &batch_);
      int64_t cost = 0;
      for (const BatchSlice& slice : batch_.slices) {
        EXPECT_EQ(slice.item->key(), batch_.slices.front().item->key());
        EXPECT_EQ(slice.first, done[slice.item]);
        done[slice.item] += slice.count;
        EXPECT_EQ(slice.last, done[slice.item] == slice.item->tokens());
        if (slice.last) done[slice.item] = -1;
        cost += std::max<int64_t>(slice.count, 1);
      }
      waiting -= cost;
      EXPECT_LE(cost, max_batch_tokens);
      EXPECT_EQ(queue_->tokens(), waiting);
    };
    for (int step = 0; step < 100; ++step) {
      now_ += microseconds(draw(0, 2));
      if (draw(0, 2) > 0) {
        const int64_t tokens = draw(0, 3) == 0 ? draw(0, 60) : draw(0, 3);
        PushUntil("x", tokens,
                  draw(0, 1) == 0 ? SteadyTime::max()
                                  : now_ + microseconds(draw(1, 50)),
                  &kLayers[draw(0, 2)]);
        waiting += std::max<int64_t>(tokens, 1);
      } else {
        run();
      }
    }
    while (!queue_->empty()) {
      const int64_t before = waiting;
      run();
      ASSERT_LT(waiting, before);
    }
    for (const BatchItem& item : items_) EXPECT_EQ(done[&item], -1);
  }
}

}  // namespace
}  // namespace moe
