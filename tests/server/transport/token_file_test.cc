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
    auto file = TokenFile::Open(folder_.Write("tokens", text),
                                "--auth_token_file", &watcher_);
    MOE_EXPECT_OK(file);
    return *std::move(file);
  }

  // Replaces the file, and has it looked at.
  void Replace(const std::string& text) {
    folder_.Write("tokens", text);
    watcher_.Look();
  }

  TempFolder folder_;
  FileWatcher watcher_;
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
  Replace("old\nnew one");
  EXPECT_TRUE(file->Accepts("new one"));
  EXPECT_TRUE(file->Accepts("old"));
  Replace("new one");
  EXPECT_FALSE(file->Accepts("old"));
}

TEST_F(TokenFileTest, KeepsItsTokensWhenTheFileIsNoGood) {
  const auto file = Open("secret");
  Replace("\n\n");
  EXPECT_TRUE(file->Accepts("secret"));
  EXPECT_FALSE(file->Accepts(""));
  std::filesystem::remove(folder_.File("tokens"));
  watcher_.Look();
  EXPECT_TRUE(file->Accepts("secret"));
}

TEST_F(TokenFileTest, NeedsAFileWithATokenToBeginWith) {
  const auto open = [this](const std::string& path) {
    return TokenFile::Open(path, "--auth_token_file", &watcher_).status();
  };
  EXPECT_THAT(open(folder_.File("none")),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(open(folder_.Write("empty", " \n")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--auth_token_file: want a token")));
}

TEST_F(TokenFileTest, NobodyWhoAsksReadsTheFile) {
  const auto file = Open("old");
  folder_.Write("tokens", "new one");
  EXPECT_TRUE(file->Accepts("old"));
  EXPECT_FALSE(file->Accepts("new one"));
  watcher_.Look();
  EXPECT_FALSE(file->Accepts("old"));
  EXPECT_TRUE(file->Accepts("new one"));
}

}  // namespace
}  // namespace moe
