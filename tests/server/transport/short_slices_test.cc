#include "server/transport/short_slices.h"

#include <cstdint>
#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace moe {
namespace {

std::optional<uint64_t> SliceOfNewThread() {
  std::optional<uint64_t> slice;
  std::thread([&] { slice = ShortSlices::Current(); }).join();
  return slice;
}

TEST(ShortSlicesTest, ThreadsStartedMeanwhileHaveThem) {
  const std::optional<uint64_t> before = ShortSlices::Current();
  if (!before.has_value()) GTEST_SKIP() << "this kernel does not let us choose";
  {
    const ShortSlices short_slices;
    EXPECT_EQ(ShortSlices::Current(), 100'000);
    EXPECT_EQ(SliceOfNewThread(), 100'000);
  }
  EXPECT_EQ(ShortSlices::Current(), before);
  EXPECT_EQ(SliceOfNewThread(), before);
}

}  // namespace
}  // namespace moe
