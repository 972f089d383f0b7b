#include "server/common/watched_files.h"

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

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

}  // namespace
}  // namespace moe
