#include "experts/checkpoint/mapped_file.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::string_view Text(const MappedFile& file) {
  return absl::string_view(reinterpret_cast<const char*>(file.bytes().data()),
                           file.bytes().size());
}

TEST(MappedFileTest, ShowsTheBytesAndTheNameWithoutTheFolder) {
  TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(const MappedFile file,
                           MappedFile::Open(folder.Write("a.bin", "hello")));
  EXPECT_EQ(file.name(), "a.bin");
  EXPECT_EQ(Text(file), "hello");
}

TEST(MappedFileTest, FollowsSymbolicLinks) {
  TempFolder folder;
  std::filesystem::create_symlink(folder.Write("blob", "hello"),
                                  folder.File("link"));
  MOE_ASSERT_OK_AND_ASSIGN(const MappedFile file,
                           MappedFile::Open(folder.File("link")));
  EXPECT_EQ(Text(file), "hello");
}

TEST(MappedFileTest, AnEmptyFileHasNoBytes) {
  TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(const MappedFile file,
                           MappedFile::Open(folder.Write("empty", "")));
  EXPECT_TRUE(file.bytes().empty());
  file.DropPages(file.bytes());
  MOE_EXPECT_OK(file.CheckSize());
}

TEST(MappedFileTest, NamesAMissingFileWithoutItsFolder) {
  TempFolder folder;
  EXPECT_THAT(
      MappedFile::Open(folder.File("gone")),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("gone"), Not(HasSubstr(folder.path())))));
}

TEST(MappedFileTest, RefusesFoldersAndPipes) {
  TempFolder folder;
  EXPECT_THAT(MappedFile::Open(folder.path()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("want a regular file, got a folder")));
  ASSERT_EQ(mkfifo(folder.File("pipe").c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::Open(folder.File("pipe")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("pipe: want a regular file")));
}

TEST(MappedFileTest, NamesFileAndSizeWhenTheAddressSpaceIsTooSmall) {
  TempFolder folder;
  // Sparse: it takes no space on the disk, but more than any address space.
  folder.Write("huge", "x");
  if (truncate(folder.File("huge").c_str(), int64_t{1} << 43) != 0) {
    GTEST_SKIP() << "the file system has no files of 8 TiB";
  }
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = rlim_t{1} << 42;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const auto file = MappedFile::Open(folder.File("huge"));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &old_limit), 0);
  EXPECT_THAT(file, StatusIs(absl::StatusCode::kResourceExhausted,
                             AllOf(HasSubstr("huge: cannot map"),
                                   HasSubstr("8796093022208 bytes"))));
}

TEST(MappedFileTest, BytesKeepTheirAddressWhenTheObjectMoves) {
  TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(MappedFile first,
                           MappedFile::Open(folder.Write("a", "hello")));
  const uint8_t* address = first.bytes().data();
  MappedFile second = std::move(first);
  EXPECT_EQ(second.bytes().data(), address);
  MOE_ASSERT_OK_AND_ASSIGN(MappedFile third,
                           MappedFile::Open(folder.Write("b", "world")));
  third = std::move(second);
  EXPECT_EQ(Text(third), "hello");
}

TEST(MappedFileTest, DroppedPagesLeaveMemoryAndReadTheSameAgain) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::string content;
  for (size_t i = 0; i < 64 * page; ++i) {
    content.push_back(static_cast<char>(i * 31 / 7));
  }
  TempFolder folder;
  const std::string path = folder.Write("a", content);
  // Only what is on the disk can be given back.
  sync();
  MOE_ASSERT_OK_AND_ASSIGN(const MappedFile file, MappedFile::Open(path));
  EXPECT_EQ(Text(file), content);

  const auto resident = [&] {
    std::vector<unsigned char> in_core(64);
    EXPECT_EQ(mincore(const_cast<uint8_t*>(file.bytes().data()),
                      file.bytes().size(), in_core.data()),
              0);
    int count = 0;
    for (const unsigned char flags : in_core) count += flags & 1;
    return count;
  };
  EXPECT_EQ(resident(), 64);
  file.DropPages(file.bytes());
  if (resident() == 64) GTEST_SKIP() << "this file system has no cache to drop";
  EXPECT_EQ(resident(), 0);
  EXPECT_EQ(Text(file), content);
}

TEST(MappedFileTest, DropsPartsWithoutHarmToTheRest) {
  TempFolder folder;
  std::string content;
  for (int i = 0; i < 100000; ++i) content.push_back(static_cast<char>(i));
  MOE_ASSERT_OK_AND_ASSIGN(const MappedFile file,
                           MappedFile::Open(folder.Write("a", content)));
  for (const size_t begin : {0, 1, 4095, 4096, 4097, 99999, 100000}) {
    for (const size_t size : {0, 1, 4096, 10000}) {
      file.DropPages(file.bytes().subspan(begin, size));
      EXPECT_EQ(Text(file), content);
    }
  }
}

TEST(MappedFileTest, NoticesThatTheFileHasChangedItsSize) {
  TempFolder folder;
  const std::string path = folder.Write("a", "0123456789");
  MOE_ASSERT_OK_AND_ASSIGN(const MappedFile file, MappedFile::Open(path));
  MOE_EXPECT_OK(file.CheckSize());
  ASSERT_EQ(truncate(path.c_str(), 3), 0);
  EXPECT_THAT(
      file.CheckSize(),
      StatusIs(absl::StatusCode::kDataLoss,
               HasSubstr("a: had 10 bytes when it was opened, has 3 now")));
}

}  // namespace
}  // namespace moe
