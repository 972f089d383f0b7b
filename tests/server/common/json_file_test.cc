#include "server/common/json_file.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

TEST(WriteJsonFileTest, KeepsTheOrderOfMembers) {
  const TempFolder folder;
  const std::string path = folder.File("result.json");
  MOE_EXPECT_OK(WriteJsonFile(
      "--json", path,
      {{"z", 0.25}, {"a", {{"n", 3}}}, {"none", Json::object()}}));
  EXPECT_EQ(TempFolder::Contents(path),
            "{\n \"z\": 0.25,\n \"a\": {\n  \"n\": 3\n },\n \"none\": {}\n}\n");
}

TEST(WriteJsonFileTest, ReplacesWhatWasThere) {
  const TempFolder folder;
  const std::string path = folder.Write("result.json", std::string(100, 'x'));
  MOE_EXPECT_OK(WriteJsonFile("--json", path, {{"a", 1}}));
  EXPECT_EQ(TempFolder::Contents(path), "{\n \"a\": 1\n}\n");
}

TEST(WriteJsonFileTest, WritesJsonWhateverTheValues) {
  const TempFolder folder;
  const std::string path = folder.File("result.json");
  MOE_EXPECT_OK(WriteJsonFile(
      "--json", path,
      {{"nan", std::numeric_limits<double>::quiet_NaN()}, {"text", "\xff\""}}));
  EXPECT_EQ(TempFolder::Contents(path),
            "{\n \"nan\": null,\n \"text\": \"\xef\xbf\xbd\\\"\"\n}\n");
}

TEST(WriteJsonFileTest, NamesTheFlagOfAFileThatItCantWrite) {
  EXPECT_THAT(WriteJsonFile("--json", "/nowhere/x", {{"a", 1}}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--json: can't write /nowhere/x")));
}

}  // namespace
}  // namespace moe
