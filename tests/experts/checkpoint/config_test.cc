#include "experts/checkpoint/config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDamaged = absl::StatusCode::kDataLoss;

Config Parsed(absl::string_view text) {
  auto config = Config::Parse(text);
  MOE_EXPECT_OK(config);
  return *std::move(config);
}

TEST(ConfigTest, GivesValuesOfEveryType) {
  const Config config = Parsed(R"({"i": 7, "d": 0.5, "b": true, "s": "silu",
                                   "negative": -3, "whole": 2})");
  EXPECT_EQ(*config.Int("i"), 7);
  EXPECT_EQ(*config.Int("negative", -10), -3);
  EXPECT_EQ(*config.Double("d"), 0.5);
  EXPECT_EQ(*config.Double("whole"), 2.0);
  EXPECT_EQ(*config.Bool("b"), true);
  EXPECT_EQ(*config.String("s"), "silu");
  EXPECT_TRUE(config.Has("i"));
  EXPECT_FALSE(config.Has("j"));
}

TEST(ConfigTest, AbsentKeysGiveTheDefault) {
  const Config config = Parsed("{}");
  EXPECT_EQ(*config.IntOr("k", 3), 3);
  EXPECT_EQ(*config.DoubleOr("k", 0.25), 0.25);
  EXPECT_EQ(*config.BoolOr("k", true), true);
  EXPECT_EQ(*config.StringOr("k", "gelu"), "gelu");
  EXPECT_EQ(*config.OptionalInt("k"), std::nullopt);
  EXPECT_EQ(*config.OptionalDouble("k"), std::nullopt);
  EXPECT_EQ(*config.OptionalBool("k"), std::nullopt);
  EXPECT_EQ(*config.OptionalString("k"), std::nullopt);
  EXPECT_THAT(*config.Ints("k"), IsEmpty());
  EXPECT_FALSE(config.OptionalSection("k")->has_value());
}

TEST(ConfigTest, PresentKeysWinOverTheDefault) {
  const Config config =
      Parsed(R"({"i": 7, "d": 0.5, "b": false, "s": "silu", "o": {}})");
  EXPECT_EQ(*config.IntOr("i", 3), 7);
  EXPECT_EQ(*config.DoubleOr("d", 0.25), 0.5);
  EXPECT_EQ(*config.BoolOr("b", true), false);
  EXPECT_EQ(*config.StringOr("s", "gelu"), "silu");
  EXPECT_EQ(*config.OptionalInt("i"), 7);
  EXPECT_TRUE(config.OptionalSection("o")->has_value());
}

TEST(ConfigTest, NullCountsAsAbsent) {
  const Config config = Parsed(R"({"n_inner": null})");
  EXPECT_FALSE(config.Has("n_inner"));
  EXPECT_EQ(*config.IntOr("n_inner", 5), 5);
  EXPECT_THAT(config.Int("n_inner"), StatusIs(kInvalid, HasSubstr("nothing")));
}

TEST(ConfigTest, ErrorsNameFileKeyWantedAndGot) {
  const Config config = Parsed(
      R"({"num_experts_per_tok": "two", "zero": 0, "half": 0.5, "o": {},
          "l": [1], "t": true, "big": 18446744073709551615})");
  const auto message = [](absl::string_view text) {
    return StatusIs(kInvalid, std::string(text));
  };
  EXPECT_THAT(config.Int("num_experts_per_tok", 1),
              message("config.json: num_experts_per_tok: want an integer >= "
                      "1, got \"two\""));
  EXPECT_THAT(config.Int("gone"),
              message("config.json: gone: want an integer >= 0, got nothing"));
  EXPECT_THAT(config.IntOr("zero", 9, 1),
              message("config.json: zero: want an integer >= 1, got 0"));
  EXPECT_THAT(config.OptionalInt("half"),
              message("config.json: half: want an integer >= 0, got 0.5"));
  EXPECT_THAT(config.Int("big"),
              message("config.json: big: want an integer >= 0, got "
                      "18446744073709551615"));
  EXPECT_THAT(config.Int("t"),
              message("config.json: t: want an integer >= 0, got true"));
  EXPECT_THAT(config.Double("o"),
              message("config.json: o: want a number, got an object"));
  EXPECT_THAT(config.Bool("l"),
              message("config.json: l: want true or false, got a list"));
  EXPECT_THAT(config.String("zero"),
              message("config.json: zero: want a string, got 0"));
  EXPECT_THAT(config.Section("l"),
              message("config.json: l: want an object, got a list"));
  EXPECT_THAT(config.Section("gone"),
              message("config.json: gone: want an object, got nothing"));
  EXPECT_THAT(config.Error("zero", "a divisor of 8", "0"),
              message("config.json: zero: want a divisor of 8, got 0"));
}

TEST(ConfigTest, GivesLists) {
  const Config config = Parsed(
      R"({"mlp_only_layers": [0, 3], "flags": [true, false],
          "architectures": ["A", "B"], "empty": []})");
  EXPECT_THAT(*config.Ints("mlp_only_layers"), ElementsAre(0, 3));
  EXPECT_THAT(*config.Bools("flags"), ElementsAre(true, false));
  EXPECT_THAT(*config.Strings("architectures"), ElementsAre("A", "B"));
  EXPECT_THAT(*config.Ints("empty"), IsEmpty());
  EXPECT_TRUE(config.IsList("empty"));
  EXPECT_FALSE(config.IsList("gone"));
}

TEST(ConfigTest, ErrorsNameTheWrongItemOfAList) {
  const Config config = Parsed(R"({"l": [1, "x"], "i": 4})");
  EXPECT_THAT(
      config.Ints("l"),
      StatusIs(kInvalid, std::string("config.json: l[1]: want a list of "
                                     "integers, got \"x\"")));
  EXPECT_THAT(config.Bools("l"), StatusIs(kInvalid, HasSubstr("l[0]")));
  EXPECT_THAT(config.Strings("i"),
              StatusIs(kInvalid, HasSubstr("i: want a list of strings")));
}

TEST(ConfigTest, SectionsNameTheWholePath) {
  const Config config =
      Parsed(R"({"text_config": {"moe": {"num_experts": -1}}})");
  MOE_ASSERT_OK_AND_ASSIGN(const Config text, config.Section("text_config"));
  MOE_ASSERT_OK_AND_ASSIGN(const Config inner, text.Section("moe"));
  EXPECT_THAT(inner.Int("num_experts", 1),
              StatusIs(kInvalid,
                       std::string("config.json: text_config.moe.num_experts: "
                                   "want an integer >= 1, got -1")));
}

TEST(ConfigTest, SectionsOutliveTheConfig) {
  std::optional<Config> section;
  {
    const Config config = Parsed(R"({"ffn_config": {"moe_top_k": 4}})");
    section = *config.Section("ffn_config");
  }
  EXPECT_EQ(*section->Int("moe_top_k"), 4);
}

TEST(ConfigTest, ReadsPythonConstantsAsNull) {
  const Config config = Parsed(
      R"({"limit": [0.0, Infinity], "low": -Infinity, "x": NaN,
          "text": "NaN \"Infinity\" \\", "after": 1})");
  EXPECT_FALSE(config.Has("low"));
  EXPECT_FALSE(config.Has("x"));
  EXPECT_EQ(*config.String("text"), "NaN \"Infinity\" \\");
  EXPECT_EQ(*config.Int("after"), 1);
}

TEST(ConfigTest, RefusesWhatIsNotJson) {
  EXPECT_THAT(Config::Parse("{\n \"a\": 1,\n \"b\": }\n", "c.json"),
              StatusIs(kDamaged, HasSubstr("c.json: not valid JSON at line 3, "
                                           "column 7")));
  EXPECT_THAT(Config::Parse(""), StatusIs(kDamaged, HasSubstr("not valid")));
  EXPECT_THAT(Config::Parse("{} x"), StatusIs(kDamaged, HasSubstr("column 4")));
  EXPECT_THAT(Config::Parse("{\"a\": 1e999}"),
              StatusIs(kDamaged, HasSubstr("not valid")));
  EXPECT_THAT(Config::Parse("{\"a\": \"\xff\"}"),
              StatusIs(kDamaged, HasSubstr("not valid")));
  EXPECT_THAT(Config::Parse("[1]"),
              StatusIs(kDamaged, HasSubstr("want an object, got a list")));
}

TEST(ConfigTest, RefusesAKeyThatAppearsTwice) {
  EXPECT_THAT(Config::Parse(R"({"a": {"k": 1, "k": 2}})"),
              StatusIs(kDamaged, HasSubstr("key \"k\" appears twice")));
}

TEST(ConfigTest, RefusesDeepNesting) {
  const auto nested = [](int depth) {
    return absl::StrCat("{\"a\":", std::string(depth - 1, '['),
                        std::string(depth - 1, ']'), "}");
  };
  MOE_EXPECT_OK(Config::Parse(nested(64)));
  EXPECT_THAT(Config::Parse(nested(65)),
              StatusIs(kDamaged, HasSubstr("nested deeper than 64")));
  EXPECT_THAT(Config::Parse(nested(1000000)),
              StatusIs(kDamaged, HasSubstr("nested deeper than 64")));
}

TEST(ConfigTest, RefusesHugeFiles) {
  const std::string text =
      absl::StrCat("{}", std::string(size_t{16} << 20, ' '));
  EXPECT_THAT(Config::Parse(text),
              StatusIs(kDamaged, HasSubstr("want at most 16777216 bytes")));
}

TEST(ConfigTest, OpensFiles) {
  TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(
      const Config config,
      Config::Open(folder.Write("config.json", R"({"k": 1})")));
  EXPECT_EQ(*config.Int("k"), 1);
  EXPECT_THAT(
      Config::Open(folder.File("gone.json")),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("gone.json"), Not(HasSubstr(folder.path())))));
  EXPECT_THAT(Config::Open(folder.Write("empty.json", "")),
              StatusIs(kDamaged, HasSubstr("empty.json: not valid JSON")));
}

TEST(ConfigTest, WholeNumbersMayBeWrittenWithAPoint) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const Config config,
      Config::Parse(R"({"a": 8.0, "b": [1.0, 2], "c": 8.5, "d": 1e300})"));
  EXPECT_EQ(*config.Int("a"), 8);
  EXPECT_EQ(*config.Ints("b"), (std::vector<int64_t>{1, 2}));
  EXPECT_THAT(config.Int("c"), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("got 8.5")));
  EXPECT_THAT(config.Int("d"), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("d: want an integer")));
}

TEST(ConfigTest, TellsNullFromNothing) {
  MOE_ASSERT_OK_AND_ASSIGN(const Config config,
                           Config::Parse(R"({"a": null, "b": 1, "c": 1.0})"));
  EXPECT_TRUE(config.IsNull("a"));
  EXPECT_FALSE(config.IsNull("b"));
  EXPECT_FALSE(config.IsNull("z"));
  EXPECT_EQ(config.Text("z"), "nothing");
  EXPECT_EQ(config.Text("b"), "1");
  EXPECT_TRUE(config.SameValue("b", "c"));
  EXPECT_FALSE(config.SameValue("a", "b"));
  EXPECT_THAT(config.Keys(), ::testing::ElementsAre("a", "b", "c"));
}

TEST(ConfigTest, RefusesMoreValuesThanAnyFileHas) {
  std::string text = R"({"a": [0)";
  for (int i = 0; i < 4'000'000; ++i) text += ",0";
  EXPECT_THAT(Config::Parse(text + "]}"),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("more than 4000000 values")));
}

}  // namespace
}  // namespace moe
