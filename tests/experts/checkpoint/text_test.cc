#include "experts/checkpoint/text.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(TextTest, QuotesNamesOnOneLine) {
  EXPECT_EQ(Quote("a.b"), "\"a.b\"");
  EXPECT_EQ(Quote("a\n\x1b[31mb"), "\"a\\n\\x1b[31mb\"");
}

TEST(TextTest, CutsLongNames) {
  EXPECT_EQ(Quote(std::string(1000, 'x')),
            "\"" + std::string(160, 'x') + "...\"");
}

TEST(TextTest, PrintsShapes) {
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(ShapeText({8, -1, 64}), "[8, ?, 64]");
  EXPECT_EQ(ShapeText(std::vector<int64_t>(1000, 2)),
            "[2, 2, 2, 2, 2, 2, 2, 2, ...]");
}

TEST(TextTest, TakesTheNameOffAPath) {
  EXPECT_EQ(BaseName("/secret/model.safetensors"), "model.safetensors");
  EXPECT_EQ(BaseName("model.safetensors"), "model.safetensors");
  EXPECT_EQ(BaseName("a/b\nc"), "b\\nc") << "it must stay on one line";
}

}  // namespace
}  // namespace moe
