#include "server/watched_files.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

TEST(WatchedFilesTest, TellsOnceOfAChange) {
  TempFolder folder;
  const std::string a = folder.Write("a", "1");
  const std::string b = folder.Write("b", "1");
  WatchedFiles files({a, "", b});
  EXPECT_FALSE(files.Changed());
  folder.Write("b", "22");
  EXPECT_TRUE(files.Changed());
  EXPECT_FALSE(files.Changed());
}

TEST(WatchedFilesTest, TellsOfAFileThatTookTheNameOfAnother) {
  TempFolder folder;
  const std::string path = folder.Write("a", "1");
  WatchedFiles files({path});
  std::filesystem::rename(folder.Write("new", "1"), path);
  EXPECT_TRUE(files.Changed());
}

TEST(WatchedFilesTest, TellsOfFilesThatComeAndGo) {
  TempFolder folder;
  WatchedFiles files({folder.File("a")});
  EXPECT_FALSE(files.Changed());
  folder.Write("a", "1");
  EXPECT_TRUE(files.Changed());
  std::filesystem::remove(folder.File("a"));
  EXPECT_TRUE(files.Changed());
  EXPECT_FALSE(files.Changed());
}

TEST(ReadSmallFileTest, ReadsAllOfIt) {
  TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(
      const std::string text,
      ReadSmallFile("--flag", folder.Write("a", std::string("x\0y\n", 4))));
  EXPECT_EQ(text, std::string("x\0y\n", 4));
  MOE_ASSERT_OK_AND_ASSIGN(const std::string empty,
                           ReadSmallFile("--flag", folder.Write("b", "")));
  EXPECT_EQ(empty, "");
}

TEST(ReadSmallFileTest, RefusesWhatIsNoSmallFile) {
  TempFolder folder;
  EXPECT_THAT(
      ReadSmallFile("--flag", folder.File("none")),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("--flag: can't read")));
  EXPECT_THAT(
      ReadSmallFile("--flag", folder.path()),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("--flag: can't read")));
  EXPECT_THAT(
      ReadSmallFile("--flag", folder.Write("large", std::string(2 << 20, 'x'))),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("--flag: want a file of at most")));
}

}  // namespace
}  // namespace moe
