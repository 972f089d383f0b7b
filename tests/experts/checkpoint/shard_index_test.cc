#include "experts/checkpoint/shard_index.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr auto kDamaged = absl::StatusCode::kDataLoss;

TEST(ShardIndexTest, MapsTensorsToFiles) {
  EXPECT_THAT(
      *ParseShardIndex(R"({"metadata": {"total_size": 12},
                                   "weight_map": {"b": "2.safetensors",
                                                  "a": "1.safetensors"}})",
                       "index"),
      ElementsAre(Pair("a", "1.safetensors"), Pair("b", "2.safetensors")));
}

TEST(ShardIndexTest, RefusesFilesOutsideTheFolder) {
  for (const std::string name :
       {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\u0000b"}) {
    SCOPED_TRACE(name);
    EXPECT_THAT(
        ParseShardIndex(
            absl::StrCat(R"({"weight_map": {"t": ")", name, R"("}})"), "index"),
        StatusIs(kDamaged, HasSubstr("index: tensor \"t\": want the name of a "
                                     "file in the same folder, got \"")));
  }
}

TEST(ShardIndexTest, RefusesWhatIsNoIndex) {
  EXPECT_THAT(ParseShardIndex("{", "index"),
              StatusIs(kDamaged, HasSubstr("index: not valid JSON")));
  for (const std::string text :
       {"[]", "{}", R"({"weight_map": []})", R"({"weight_map": null})"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(ParseShardIndex(text, "index"),
                StatusIs(kDamaged, HasSubstr("weight_map: want an object")));
  }
  EXPECT_THAT(ParseShardIndex(R"({"weight_map": {"t": 3}})", "index"),
              StatusIs(kDamaged, HasSubstr("tensor \"t\"")));
  EXPECT_THAT(
      ParseShardIndex(R"({"weight_map": {"t": "a", "t": "b"}})", "index"),
      StatusIs(kDamaged, HasSubstr("key \"t\" appears twice")));
}

}  // namespace
}  // namespace moe
