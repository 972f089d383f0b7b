#include "experts/base/dtype.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(DTypeTest, BF16RoundTripsEveryValue) {
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const float value = BF16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(value))));
    } else {
      EXPECT_EQ(FloatToBF16(value), bits);
    }
  }
}

TEST(DTypeTest, F16RoundTripsEveryValue) {
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const float value = F16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
    } else {
      EXPECT_EQ(FloatToF16(value), bits);
    }
  }
}

TEST(DTypeTest, RoundsToNearestTiesToEven) {
  EXPECT_EQ(FloatToBF16(1.0F + 0x1p-8F), 0x3f80);  // halfway, even below
  EXPECT_EQ(FloatToBF16(1.0F + 0x3p-8F), 0x3f82);  // halfway, even above
  EXPECT_EQ(FloatToF16(1.0F + 0x1p-11F), 0x3c00);
  EXPECT_EQ(FloatToF16(1.0F + 0x3p-11F), 0x3c02);
  EXPECT_EQ(FloatToF16(65519.9F), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0F), 0x7c00);  // infinity
  EXPECT_EQ(FloatToF16(0x1p-25F), 0x0000);  // halfway to the least subnormal
  EXPECT_EQ(FloatToF16(0x1.8p-25F), 0x0001);
  EXPECT_EQ(FloatToBF16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(DTypeTest, E4M3HasTheValuesOfTheSpecification) {
  EXPECT_EQ(F8E4M3ToFloat(0x00), 0.0F);
  EXPECT_EQ(F8E4M3ToFloat(0x01), 0x1p-9F);
  EXPECT_EQ(F8E4M3ToFloat(0x07), 0x7p-9F);
  EXPECT_EQ(F8E4M3ToFloat(0x08), 0x1p-6F);
  EXPECT_EQ(F8E4M3ToFloat(0x38), 1.0F);
  EXPECT_EQ(F8E4M3ToFloat(0x7e), 448.0F);
  EXPECT_EQ(F8E4M3ToFloat(0xfe), -448.0F);
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0x7f)));
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0xff)));
}

TEST(DTypeTest, E8M0AndE2M1HaveTheValuesOfTheSpecification) {
  EXPECT_EQ(F8E8M0ToFloat(127), 1.0F);
  EXPECT_EQ(F8E8M0ToFloat(0), 0x1p-127F);
  EXPECT_EQ(F8E8M0ToFloat(254), 0x1p127F);
  EXPECT_TRUE(std::isnan(F8E8M0ToFloat(255)));
  const float magnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(F4E2M1ToFloat(code), magnitudes[code]);
    EXPECT_EQ(F4E2M1ToFloat(code | 8), -magnitudes[code]);
  }
}

}  // namespace
}  // namespace moe
