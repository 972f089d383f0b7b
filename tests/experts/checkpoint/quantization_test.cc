#include "experts/checkpoint/quantization.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Quantization> Parse(absl::string_view text) {
  return ParseQuantization(*Config::Parse(text));
}

TEST(QuantizationTest, HasDefaults) {
  for (const char* text :
       {"{}", R"({"quantization_config": {}})", R"({"text_config": {}})",
        R"({"quantization_config": null})"}) {
    SCOPED_TRACE(text);
    MOE_ASSERT_OK_AND_ASSIGN(const Quantization quantization, Parse(text));
    EXPECT_EQ(quantization.block_rows, 128);
    EXPECT_EQ(quantization.block_cols, 128);
    EXPECT_EQ(quantization.group_size, std::nullopt);
    EXPECT_EQ(quantization.gptq_symmetric_zero, 7);
  }
}

TEST(QuantizationTest, ReadsTheTopOrTheTextConfig) {
  const std::string section =
      R"("quantization_config": {"weight_block_size": [64, 32],
         "group_size": 128, "checkpoint_format": "gptq_v2"})";
  for (const std::string& text :
       {"{" + section + "}", R"({"text_config": {)" + section + "}}"}) {
    SCOPED_TRACE(text);
    MOE_ASSERT_OK_AND_ASSIGN(const Quantization quantization, Parse(text));
    EXPECT_EQ(quantization.block_rows, 64);
    EXPECT_EQ(quantization.block_cols, 32);
    EXPECT_EQ(quantization.group_size, 128);
    EXPECT_EQ(quantization.gptq_symmetric_zero, 8);
  }
}

TEST(QuantizationTest, MinusOneStandsForOneGroup) {
  EXPECT_EQ(Parse(R"({"quantization_config": {"group_size": -1}})")->group_size,
            std::nullopt);
}

TEST(QuantizationTest, NamesTheKeyThatIsWrong) {
  const auto invalid = [](absl::string_view message) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr(std::string(message)));
  };
  EXPECT_THAT(Parse(R"({"quantization_config": 1})"),
              invalid("quantization_config: want an object"));
  EXPECT_THAT(Parse(R"({"text_config": 1})"),
              invalid("text_config: want an object"));
  for (const char* block : {"[128]", "[0, 128]", "[128, -1]", "[]"}) {
    EXPECT_THAT(
        Parse(std::string(R"({"quantization_config": {"weight_block_size": )") +
              block + "}}"),
        invalid("quantization_config.weight_block_size: want two integers"));
  }
  // The message stays short, however long the list.
  const std::string ones = "1" + std::string(1000, ' ') + ",1,1,1,1,1,1,1,1,1";
  EXPECT_THAT(Parse(R"({"quantization_config": {"weight_block_size": [)" +
                    ones + "]}}"),
              invalid("got [1, 1, 1, 1, 1, 1, 1, 1, ...]"));
  EXPECT_THAT(Parse(R"({"quantization_config": {"group_size": 0}})"),
              invalid("quantization_config.group_size: want -1 or >= 1"));
  EXPECT_THAT(Parse(R"({"quantization_config": {"group_size": -2}})"),
              invalid("quantization_config.group_size: want"));
  EXPECT_THAT(Parse(R"({"quantization_config": {"checkpoint_format": 2}})"),
              invalid("quantization_config.checkpoint_format: want a string"));
}

}  // namespace
}  // namespace moe
