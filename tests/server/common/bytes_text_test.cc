#include "server/common/bytes_text.h"

#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(BytesTextTest, HasThreeDigitsAndTheUnitThatFits) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1), "1 B");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(999.4), "999 B");
  EXPECT_EQ(BytesText(999.5), "1 kB");
  EXPECT_EQ(BytesText(1234), "1.23 kB");
  EXPECT_EQ(BytesText(12345), "12.3 kB");
  EXPECT_EQ(BytesText(123456), "123 kB");
  EXPECT_EQ(BytesText(999999), "1 MB");
  EXPECT_EQ(BytesText(1.5e9), "1.5 GB");
  EXPECT_EQ(BytesText(1.5e12), "1.5 TB");
}

}  // namespace
}  // namespace moe
