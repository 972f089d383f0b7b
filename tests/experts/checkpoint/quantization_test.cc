#include "experts/checkpoint/quantization.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
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
    EXPECT_EQ(quantization.method, "");
    EXPECT_EQ(quantization.awq_version, "gemm");
    EXPECT_EQ(quantization.gptq_format, "gptq");
    EXPECT_EQ(quantization.gptq_zero_offset(), 1);
  }
}

TEST(QuantizationTest, ReadsTheTopOrTheTextConfig) {
  const std::string section =
      R"("quantization_config": {"weight_block_size": [64, 32],
         "group_size": 128, "quant_method": "gptq",
         "checkpoint_format": "gptq_v2"})";
  for (const std::string& text :
       {"{" + section + "}", R"({"text_config": {)" + section + "}}"}) {
    SCOPED_TRACE(text);
    MOE_ASSERT_OK_AND_ASSIGN(const Quantization quantization, Parse(text));
    EXPECT_EQ(quantization.block_rows, 64);
    EXPECT_EQ(quantization.block_cols, 32);
    EXPECT_EQ(quantization.group_size, 128);
    EXPECT_EQ(quantization.method, "gptq");
    EXPECT_EQ(quantization.gptq_format, "gptq_v2");
    EXPECT_EQ(quantization.gptq_zero_offset(), 0);
  }
}

TEST(QuantizationTest, MinusOneStandsForOneGroup) {
  EXPECT_EQ(Parse(R"({"quantization_config": {"group_size": -1}})")->group_size,
            std::nullopt);
}

TEST(QuantizationTest, TheVersionIsThatOfAwqAlone) {
  const auto version = [](absl::string_view method) {
    return Parse(absl::StrCat(R"({"quantization_config": {"quant_method": ")",
                              method, R"(", "version": "GEMV"}})"))
        ->awq_version;
  };
  EXPECT_EQ(version("awq"), "gemv");
  EXPECT_EQ(version("gptq"), "gemm");
}

TEST(QuantizationTest, FormatsOfZeroPointsAreKnownByName) {
  const auto offset = [](absl::string_view section) {
    return Parse(absl::StrCat(R"({"quantization_config": {)", section, "}}"))
        ->gptq_zero_offset();
  };
  EXPECT_EQ(offset(R"("quant_method": "gptq")"), 1);
  EXPECT_EQ(offset(R"("packing_format": "auto_round:auto_gptq")"), 1);
  EXPECT_EQ(offset(R"("packing_format": "auto_round:gptqmodel")"), 0);
  EXPECT_EQ(offset(R"("packing_format": "auto_round")"), 0);
  EXPECT_EQ(offset(R"("checkpoint_format": "gptq",
                      "packing_format": "auto_round")"),
            1);
  EXPECT_EQ(offset(R"("checkpoint_format": "bitblas")"), std::nullopt);
  EXPECT_EQ(offset(R"("quant_method": "auto-round")"), std::nullopt);
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
  for (const char* key :
       {"checkpoint_format", "packing_format", "quant_method"}) {
    EXPECT_THAT(
        Parse(absl::StrCat(R"({"quantization_config": {")", key, R"(": 2}})")),
        invalid(absl::StrCat("quantization_config.", key, ": want a string")));
  }
  EXPECT_THAT(Parse(R"({"quantization_config":
                        {"quant_method": "awq", "version": 1}})"),
              invalid("quantization_config.version: want a string"));
}

TEST(QuantizationTest, WhatIsNotReadIsRefusedByMethodAndOption) {
  const auto check = [](absl::string_view json) {
    return CheckQuantization(*Config::Parse(json));
  };
  for (const char* fine :
       {"{}", R"({"quantization_config": {"quant_method": "fp8",
                                           "fmt": "e4m3"}})",
        R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})",
        R"({"quantization_config": {"quant_method": "compressed-tensors",
            "format": "pack-quantized", "transform_config": {},
            "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}})",
        R"({"quantization_config": {"quant_method": "modelopt",
                                    "quant_algo": "FP8"}})"}) {
    MOE_EXPECT_OK(check(fine));
  }
  const std::pair<const char*, const char*> refused[] = {
      {R"({"quantization_config": {"quant_method": "quark"}})",
       R"(config.json: quantization_config.quant_method: want "fp8" or )"},
      {R"({"quantization_config": {"quant_method": "bitsandbytes"}})",
       R"(got "bitsandbytes")"},
      {R"({"compression_config": {"quant_method": "aqlm"}})",
       "compression_config.quant_method: want"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
                                   "format": "int-quantized"}})",
       R"(quantization_config.format: want "pack-quantized" or )"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}})",
       "config_groups.group_0.weights.num_bits: want 4, got 8, from "
       "quant_method \"compressed-tensors\""},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "transform_config": {"config_groups": {}}}})",
       "quantization_config.transform_config: want nothing"},
      {R"({"quantization_config": {"quant_method": "awq", "bits": 3}})",
       "quantization_config.bits: want 4, got 3, from quant_method \"awq\""},
      {R"({"quantization_config": {"quant_method": "modelopt",
                                   "quant_algo": "NVFP4"}})",
       R"(quantization_config.quant_algo: want "FP8", got "NVFP4")"},
      {R"({"quantization": {"bits": 4, "group_size": 64}})",
       "MLX has quantised these weights, to 4 bits in groups of 64"},
  };
  for (const auto& [json, message] : refused) {
    EXPECT_THAT(check(json),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(message)));
  }
}

}  // namespace
}  // namespace moe
