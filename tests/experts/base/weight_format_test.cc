#include "experts/base/weight_format.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(WeightFormatTest, NamesRoundTrip) {
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kF32}) {
    MOE_ASSERT_OK_AND_ASSIGN(const WeightFormat parsed,
                             ParseWeightFormat(WeightFormatName(format)));
    EXPECT_EQ(parsed, format);
  }
  EXPECT_EQ(WeightFormatName(WeightFormat::kAuto), "auto");
  EXPECT_EQ(WeightFormatName(WeightFormat::kF32), "f32");
}

TEST(WeightFormatTest, RefusesOtherNamesListingThoseThereAre) {
  for (const char* name : {"", "F32", "float32", "f32 ", "automatic"}) {
    EXPECT_THAT(ParseWeightFormat(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("weight format: want one of"),
                               HasSubstr("auto"), HasSubstr("f32"),
                               HasSubstr(absl::StrCat("\"", name, "\"")))));
  }
}

}  // namespace
}  // namespace moe
