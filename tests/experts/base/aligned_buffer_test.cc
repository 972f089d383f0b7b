#include "experts/base/aligned_buffer.h"

#include <cstdint>
#include <new>
#include <utility>

#include "gtest/gtest.h"

namespace moe {
namespace {

bool IsAligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % kBufferAlignment == 0;
}

TEST(AlignedBufferTest, IsAlignedAndWritableAtEverySize) {
  for (int64_t size = 1; size <= 130; ++size) {
    AlignedBuffer<float> floats(size);
    AlignedBuffer<bool> bools(size);
    EXPECT_EQ(floats.size(), size);
    EXPECT_EQ(bools.size(), size);
    EXPECT_TRUE(IsAligned(floats.data()));
    EXPECT_TRUE(IsAligned(bools.data()));
    for (int64_t i = 0; i < size; ++i) {
      floats[i] = static_cast<float>(i);
      bools[i] = i % 3 == 0;
    }
    for (int64_t i = 0; i < size; ++i) {
      EXPECT_EQ(floats.data()[i], static_cast<float>(i));
      EXPECT_EQ(bools.data()[i], i % 3 == 0);
    }
  }
}

TEST(AlignedBufferTest, HoldsNothingUntilAsked) {
  AlignedBuffer<float> buffer;
  EXPECT_EQ(buffer.size(), 0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.Grow(0), nullptr);
  EXPECT_EQ(buffer.size(), 0);
}

TEST(AlignedBufferTest, KeepsMemoryAndContentsWhenAskedForNoMore) {
  AlignedBuffer<int32_t> buffer(100);
  int32_t* const data = buffer.data();
  data[99] = 7;
  EXPECT_EQ(buffer.Grow(1), data);
  EXPECT_EQ(buffer.Grow(0), data);
  EXPECT_EQ(buffer.Grow(100), data);
  EXPECT_EQ(buffer.size(), 100);
  EXPECT_EQ(buffer[99], 7);
}

TEST(AlignedBufferTest, GrowsToTheLargestSizeAskedFor) {
  AlignedBuffer<int32_t> buffer(3);
  int32_t* const data = buffer.Grow(1000);
  EXPECT_TRUE(IsAligned(data));
  EXPECT_EQ(data, buffer.data());
  EXPECT_EQ(buffer.size(), 1000);
  data[999] = 1;
}

TEST(AlignedBufferTest, MovesItsMemory) {
  AlignedBuffer<int32_t> from(10);
  from[9] = 4;
  const int32_t* const data = from.data();
  const AlignedBuffer<int32_t> to = std::move(from);
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(to.size(), 10);
  EXPECT_EQ(to[9], 4);
}

TEST(AlignedBufferTest, IsEmptyAndUsableOnceMovedFrom) {
  AlignedBuffer<int32_t> from(10);
  AlignedBuffer<int32_t> to = std::move(from);
  EXPECT_EQ(from.size(), 0);  // NOLINT(bugprone-use-after-move): is promised
  EXPECT_EQ(from.data(), nullptr);
  ASSERT_NE(from.Grow(5), nullptr);
  from[4] = 8;
  EXPECT_EQ(from.size(), 5);

  to[9] = 3;
  from = std::move(to);
  EXPECT_EQ(from.size(), 10);
  EXPECT_EQ(from[9], 3);
  EXPECT_EQ(to.size(), 0);  // NOLINT(bugprone-use-after-move): is promised
  ASSERT_NE(to.Grow(1), nullptr);
  to[0] = 1;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The sanitizers' allocators end the process themselves.
TEST(AlignedBufferTest, ThrowsAsOperatorNewDoesWhereThereIsNoMemory) {
  AlignedBuffer<float> buffer(2);
  EXPECT_THROW(buffer.Grow(int64_t{1} << 58), std::bad_alloc);
  EXPECT_EQ(buffer.size(), 0);
  EXPECT_NE(buffer.Grow(3), nullptr);
}
#endif

}  // namespace
}  // namespace moe
