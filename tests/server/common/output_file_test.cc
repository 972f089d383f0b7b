#include "server/common/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

mode_t Permissions(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST(WriteOutputFileTest, WritesAllPartsIntoANewFile) {
  TempFolder folder;
  const std::string path = folder.File("new");
  MOE_EXPECT_OK(WriteOutputFile("--output", path, {"one ", "", "two"}));
  EXPECT_EQ(TempFolder::Contents(path), "one two");
  EXPECT_THAT(Names(folder.path()), ElementsAre("new"));
}

TEST(WriteOutputFileTest, ReplacesAFileAndKeepsItsPermissions) {
  TempFolder folder;
  const std::string path = folder.Write("out", "old and longer");
  ASSERT_EQ(chmod(path.c_str(), 0604), 0);
  const int old = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  MOE_EXPECT_OK(WriteOutputFile("--output", path, {"new"}));
  EXPECT_EQ(TempFolder::Contents(path), "new");
  EXPECT_EQ(Permissions(path), 0604U);
  EXPECT_THAT(Names(folder.path()), ElementsAre("out"));
  // Who has it open reads on in the old one.
  char text[32];
  EXPECT_EQ(read(old, text, sizeof(text)), 14);
  close(old);
}

TEST(WriteOutputFileTest, FollowsLinks) {
  TempFolder folder;
  fs::create_directory(folder.File("below"));
  folder.Write("below/file", "old");
  fs::create_symlink("below/file", folder.File("relative"));
  fs::create_symlink(folder.File("relative"), folder.File("absolute"));
  MOE_EXPECT_OK(WriteOutputFile("--output", folder.File("absolute"), {"new"}));
  EXPECT_EQ(TempFolder::Contents(folder.File("below/file")), "new");
  // To a file that does not exist yet.
  fs::create_symlink("below/other", folder.File("dangling"));
  MOE_EXPECT_OK(WriteOutputFile("--output", folder.File("dangling"), {"it"}));
  EXPECT_EQ(TempFolder::Contents(folder.File("below/other")), "it");
  for (const char* link : {"relative", "absolute", "dangling"}) {
    EXPECT_TRUE(fs::is_symlink(folder.File(link))) << link;
  }
  EXPECT_THAT(Names(folder.File("below")),
              UnorderedElementsAre("file", "other"));
}

TEST(WriteOutputFileTest, WritesIntoWhatIsNoRegularFile) {
  TempFolder folder;
  const std::string pipe = folder.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  fs::create_symlink("pipe", folder.File("link"));
  for (const char* name : {"pipe", "link"}) {
    MOE_EXPECT_OK(WriteOutputFile("--output", folder.File(name), {"text"}));
    char text[8];
    EXPECT_EQ(read(reader, text, sizeof(text)), 4) << name;
    EXPECT_TRUE(fs::is_fifo(pipe)) << name;
  }
  close(reader);
  EXPECT_THAT(Names(folder.path()), UnorderedElementsAre("pipe", "link"));
  MOE_EXPECT_OK(WriteOutputFile("--output", "/dev/null", {"text"}));
}

TEST(WriteOutputFileTest, AFullDeviceIsAnErrorAndStaysADevice) {
  TempFolder folder;
  // By a link, lest a mistake replaces the machine's own.
  fs::create_symlink("/dev/full", folder.File("full"));
  EXPECT_THAT(WriteOutputFile("--output", folder.File("full"), {"text"}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("/full: No space left on device")));
  EXPECT_TRUE(fs::is_symlink(folder.File("full")));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(WriteOutputFileTest, OldFileStaysWhenThereIsNoRoomForTheNewOne) {
  TempFolder folder;
  const std::string path = folder.Write("out", "old");
  // A file that may not grow fails as on a full disk: at the second write.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Cleanup restore = [&] {
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
  };
  EXPECT_THAT(WriteOutputFile("--json", path, {std::string(2000, 'x')}),
              StatusIs(absl::ErrnoToStatusCode(EFBIG),
                       HasSubstr("--json: can't write " + path + ": ")));
  EXPECT_EQ(TempFolder::Contents(path), "old");
  EXPECT_THAT(Names(folder.path()), ElementsAre("out"));
}

TEST(WriteOutputFileTest, ErrorsNameFlagPathAndReason) {
  TempFolder folder;
  const std::string missing = folder.File("gone/out");
  EXPECT_THAT(
      WriteOutputFile("--output", missing, {"x"}),
      StatusIs(absl::StatusCode::kNotFound, "--output: can't write " + missing +
                                                ": No such file or directory"));
  EXPECT_THAT(
      WriteOutputFile("--json", folder.path(), {"x"}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "--json: can't write " + folder.path() + ": Is a directory"));
  fs::create_symlink("loop", folder.File("loop"));
  EXPECT_THAT(WriteOutputFile("--json", folder.File("loop"), {"x"}),
              StatusIs(absl::ErrnoToStatusCode(ELOOP), HasSubstr("levels of")));
  EXPECT_THAT(Names(folder.path()), ElementsAre("loop"));
}

}  // namespace
}  // namespace moe
