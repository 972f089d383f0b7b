#include "server/common/read_file.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

TEST(ReadSmallFileTest, ReadsAllOfIt) {
  TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(
      const std::string text,
      ReadSmallFile("--flag", folder.Write("a", std::string("x\0y\n", 4))));
  EXPECT_EQ(text, std::string("x\0y\n", 4));
  MOE_ASSERT_OK_AND_ASSIGN(const std::string empty,
                           ReadSmallFile("--flag", folder.Write("b", "")));
  EXPECT_EQ(empty, "");
  const std::string large(200'000, 'x');
  MOE_ASSERT_OK_AND_ASSIGN(const std::string parts,
                           ReadSmallFile("--flag", folder.Write("c", large)));
  EXPECT_EQ(parts, large);
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
               HasSubstr("--flag: want a file of at most 1048576 bytes")));
  const std::string four = folder.Write("four", "1234");
  MOE_EXPECT_OK(ReadSmallFile("--flag", four, /*max_bytes=*/4));
  EXPECT_THAT(
      ReadSmallFile("--flag", four, /*max_bytes=*/3),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 bytes")));
}

}  // namespace
}  // namespace moe
