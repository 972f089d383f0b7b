#include "experts/base/rounding.h"

#include <limits>

#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(CeilDivTest, RoundsUp) {
  EXPECT_EQ(CeilDiv(0, 8), 0);
  EXPECT_EQ(CeilDiv(1, 8), 1);
  EXPECT_EQ(CeilDiv(8, 8), 1);
  EXPECT_EQ(CeilDiv(9, 8), 2);
}

TEST(CeilDivTest, TakesTheLargestNumbers) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CeilDiv(kMost, 2), kMost / 2 + 1);
  EXPECT_EQ(CeilDiv(kMost, kMost), 1);
}

TEST(RoundUpTest, IsTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 32), 0);
  EXPECT_EQ(RoundUp(1, 32), 32);
  EXPECT_EQ(RoundUp(32, 32), 32);
  EXPECT_EQ(RoundUp(33, 32), 64);
}

}  // namespace
}  // namespace moe
