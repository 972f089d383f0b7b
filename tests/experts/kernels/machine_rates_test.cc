#include "experts/kernels/machine_rates.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(SharesOfTest, AreEqualPagesThatDoNotOverlap) {
  const std::vector<uint8_t> memory(10 * 4096 + 100);
  const auto shares = SharesOf(memory, 3);
  ASSERT_EQ(shares.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(shares[i].data(), memory.data() + i * 3 * 4096);
    EXPECT_EQ(shares[i].size(), 3 * 4096U);
  }
}

TEST(SharesOfTest, ReadAllOfLittleMemory) {
  const std::vector<uint8_t> memory(4096);
  for (const auto& share : SharesOf(memory, 2)) {
    EXPECT_EQ(share.data(), memory.data());
    EXPECT_EQ(share.size(), memory.size());
  }
}

TEST(MeasureMachineTest, GivesEachTaskItsMemory) {
  const std::vector<uint8_t> memory(1 << 20);
  // Shares differ in size: no one reads beyond the end of its own.
  const std::vector<absl::Span<const uint8_t>> shares = {
      absl::MakeConstSpan(memory).subspan(0, 700 << 10),
      absl::MakeConstSpan(memory).subspan(memory.size() - 512)};
  int64_t tasks = 0;
  const auto serial = [&](absl::Span<const int64_t> ends,
                          absl::FunctionRef<void(int64_t, int)> fn) {
    EXPECT_THAT(ends, ::testing::ElementsAre(2));
    for (int64_t task = 0; task < 2; ++task, ++tasks) fn(task, 0);
  };
  const MachineRates rates =
      MeasureMachine(BestKernels(), shares, serial, /*rounds=*/12);
  EXPECT_GT(rates.read_gb_per_s, 0);
  EXPECT_GT(rates.peak_gflop_per_s, 0);
  EXPECT_EQ(tasks, 2 * 2 * 12);
}

}  // namespace
}  // namespace moe
