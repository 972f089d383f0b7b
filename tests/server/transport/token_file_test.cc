#include "server/transport/token_file.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

class TokenFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<TokenFile> Open(const std::string& text) {
    auto file =
        TokenFile::Open(folder_.Write("tokens", text), "--auth_token_file");
    MOE_EXPECT_OK(file);
    return *std::move(file);
  }

  TempFolder folder_;
};

TEST_F(TokenFileTest, AcceptsEachOfItsTokensAndNoOther) {
  const auto file = Open("first\n  second \r\n\n");
  EXPECT_TRUE(file->Accepts("first"));
  EXPECT_TRUE(file->Accepts("second"));
  for (const char* other : {"", "firs", "first ", "firstx", "First"}) {
    EXPECT_FALSE(file->Accepts(other)) << '"' << other << '"';
  }
}

TEST_F(TokenFileTest, HeaderNeedsTheBearerScheme) {
  const auto file = Open("secret");
  EXPECT_TRUE(file->AcceptsHeader("Bearer secret"));
  EXPECT_TRUE(file->AcceptsHeader("bearer  secret "));
  for (const char* header : {"secret", "Bearer", "Bearer ", "Bearersecret",
                             "Basic secret", "Bearer secret2"}) {
    EXPECT_FALSE(file->AcceptsHeader(header)) << '"' << header << '"';
  }
}

TEST_F(TokenFileTest, TakesANewTokenFromTheFile) {
  const auto file = Open("old");
  folder_.Write("tokens", "old\nnew one");
  EXPECT_TRUE(file->Accepts("new one"));
  EXPECT_TRUE(file->Accepts("old"));
  folder_.Write("tokens", "new one");
  EXPECT_FALSE(file->Accepts("old"));
}

TEST_F(TokenFileTest, KeepsItsTokensWhenTheFileIsNoGood) {
  const auto file = Open("secret");
  folder_.Write("tokens", "\n\n");
  EXPECT_TRUE(file->Accepts("secret"));
  EXPECT_FALSE(file->Accepts(""));
  std::filesystem::remove(folder_.File("tokens"));
  EXPECT_TRUE(file->Accepts("secret"));
}

TEST_F(TokenFileTest, NeedsAFileWithATokenToBeginWith) {
  EXPECT_THAT(TokenFile::Open(folder_.File("none"), "--auth_token_file"),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(
      TokenFile::Open(folder_.Write("empty", " \n"), "--auth_token_file"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("--auth_token_file: want a token")));
}

}  // namespace
}  // namespace moe
