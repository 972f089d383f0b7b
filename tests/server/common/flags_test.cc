#include "server/common/flags.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

ABSL_FLAG(int, test_number, 7, "A number of the test.");
ABSL_FLAG(bool, test_switch, false, "A switch of the test.");
ABSL_FLAG(std::string, test_text, "", "A text of the test.");
ABSL_FLAG(std::vector<std::string>, test_list, {}, "A list of the test.");

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class FlagsTest : public ::testing::Test {
 protected:
  using Args = std::vector<std::string>;

  // Gives the flags their values back.
  absl::FlagSaver saver_;
  TempFolder folder_;
};

TEST_F(FlagsTest, TakesValuesWithEqualsSignOrAsNextArgument) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const Args rest,
      ParseFlags(Args{"--test_number=1", "--test_text", "two words"}));
  EXPECT_THAT(rest, IsEmpty());
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 1);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_text), "two words");
}

TEST_F(FlagsTest, TakesOneDashForTwo) {
  MOE_ASSERT_OK(ParseFlags(Args{"-test_number=1", "-test_switch"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 1);
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
}

TEST_F(FlagsTest, ValuesMayHoldEqualsSignsAndDashesOrNothing) {
  MOE_ASSERT_OK(ParseFlags(Args{"--test_text=a=b", "--test_number", "-5"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_text), "a=b");
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), -5);
  MOE_ASSERT_OK(ParseFlags(Args{"--test_text="}));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_text), "");
}

TEST_F(FlagsTest, TheLastValueCounts) {
  MOE_ASSERT_OK(ParseFlags(Args{"--test_number=1", "--test_number=2"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 2);
}

TEST_F(FlagsTest, SwitchesTakeNoNextArgument) {
  MOE_ASSERT_OK_AND_ASSIGN(const Args rest,
                           ParseFlags(Args{"--test_switch", "false"}));
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  EXPECT_THAT(rest, ElementsAre("false"));
  MOE_ASSERT_OK(ParseFlags(Args{"--notest_switch"}));
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_switch));
  MOE_ASSERT_OK(ParseFlags(Args{"--test_switch=true"}));
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  MOE_ASSERT_OK(ParseFlags(Args{"--test_switch=0"}));
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_switch));
}

TEST_F(FlagsTest, ReturnsWhatIsNotAFlagInOrder) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const Args rest, ParseFlags(Args{"info", "--test_number=1", "-", "", "--",
                                       "--test_text", "--no_such_flag"}));
  EXPECT_THAT(rest,
              ElementsAre("info", "-", "", "--test_text", "--no_such_flag"));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 1);
}

TEST_F(FlagsTest, NoArgumentsChangeNothing) {
  MOE_ASSERT_OK_AND_ASSIGN(const Args rest, ParseFlags(Args{}));
  EXPECT_THAT(rest, IsEmpty());
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 7);
}

TEST_F(FlagsTest, ListsGrowWhenGivenAgain) {
  MOE_ASSERT_OK(ParseFlags(
      Args{"--test_list=a=/x,b=/y", "--test_number=1", "--test_list", "c=/z"}));
  EXPECT_THAT(absl::GetFlag(FLAGS_test_list),
              ElementsAre("a=/x", "b=/y", "c=/z"));
  // A new command line starts a new list.
  MOE_ASSERT_OK(ParseFlags(Args{"--test_list=d"}));
  EXPECT_THAT(absl::GetFlag(FLAGS_test_list), ElementsAre("d"));
}

TEST_F(FlagsTest, ErrorsNameTheFlag) {
  struct Row {
    Args args;
    std::string message;
  };
  const std::string long_name(200, 'x');
  for (const Row& row :
       {Row{{"--test_number=many"}, "--test_number: can't use \"many\""},
        Row{{"--test_number="}, "--test_number: can't use \"\""},
        Row{{"--test_switch=maybe"}, "--test_switch: can't use \"maybe\""},
        Row{{"--test_number"}, "--test_number: want a value, got none"},
        Row{{"--flagfile"}, "--flagfile: want a value, got none"},
        Row{{"--no_such_flag=1"}, "--no_such_flag: no such flag"},
        Row{{"--no_such_flag"}, "--no_such_flag: no such flag"},
        Row{{"--no_such_flag", "1"}, "--no_such_flag: no such flag"},
        Row{{"--notest_number"}, "--notest_number: no such flag"},
        Row{{"--notest_switch=1"}, "--notest_switch: no such flag"},
        Row{{"--=1"}, "--: no such flag"},
        Row{{"--test_number 5"}, "--test_number 5: no such flag"},
        Row{{"--" + long_name},
            "--" + long_name.substr(0, 64) + ": no such"}}) {
    SCOPED_TRACE(row.args[0]);
    EXPECT_THAT(ParseFlags(row.args),
                StatusIs(kInvalid, HasSubstr(row.message)));
  }
}

TEST_F(FlagsTest, ReadsFlagFiles) {
  const std::string path = folder_.Write("flags",
                                         "# a comment\n"
                                         "--test_number=3\n"
                                         "\n"
                                         "  --test_text=a b  \r\n"
                                         "  # another\n"
                                         "--test_list=b\n"
                                         "--test_switch\n"
                                         "word");
  MOE_ASSERT_OK_AND_ASSIGN(
      const Args rest,
      ParseFlags(Args{"first", "--test_list=a", "--flagfile=" + path,
                      "--test_list=c", "--test_number=4"}));
  EXPECT_THAT(rest, ElementsAre("first", "word"));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_text), "a b");
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  EXPECT_THAT(absl::GetFlag(FLAGS_test_list), ElementsAre("a", "b", "c"));
  // What comes after the file counts.
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 4);
}

TEST_F(FlagsTest, ReadsFlagsAndValuesOnLinesOfTheirOwn) {
  const std::string path =
      folder_.Write("flags", "--test_text\nvalue\n--\n--test_number=9\n");
  MOE_ASSERT_OK_AND_ASSIGN(
      const Args rest, ParseFlags(Args{"--flagfile", path, "--test_number=5"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_text), "value");
  // "--" ends the flags of its file only.
  EXPECT_THAT(rest, ElementsAre("--test_number=9"));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 5);
}

TEST_F(FlagsTest, ErrorsInFlagFilesNameTheFlag) {
  const std::string path = folder_.Write("flags", "--test_number=many\n");
  EXPECT_THAT(ParseFlags(Args{"--flagfile=" + path}),
              StatusIs(kInvalid, HasSubstr("--test_number: can't use")));
}

TEST_F(FlagsTest, EmptyFlagFilesChangeNothing) {
  MOE_EXPECT_OK(ParseFlags(Args{"--flagfile=" + folder_.Write("flags", "")}));
}

TEST_F(FlagsTest, RefusesFlagFilesThatCannotBeRead) {
  for (const std::string& path :
       {folder_.File("missing"), std::string(), folder_.path()}) {
    SCOPED_TRACE(path);
    EXPECT_THAT(ParseFlags(Args{"--flagfile=" + path}),
                StatusIs(absl::StatusCode::kNotFound,
                         HasSubstr("--flagfile: can't read " + path)));
  }
}

TEST_F(FlagsTest, RefusesFlagFilesWithoutEnd) {
  EXPECT_THAT(ParseFlags(Args{"--flagfile=/dev/zero"}),
              StatusIs(kInvalid, HasSubstr("--flagfile: want a file of at "
                                           "most 1048576 bytes")));
}

TEST_F(FlagsTest, FlagFilesMayNameOthersDownToALimit) {
  // file0 names file1 and so on; the last one sets a flag.
  const auto write_chain = [this](int length) {
    for (int i = 0; i + 1 < length; ++i) {
      folder_.Write(absl::StrCat("file", i),
                    absl::StrCat("--flagfile=",
                                 folder_.File(absl::StrCat("file", i + 1))));
    }
    folder_.Write(absl::StrCat("file", length - 1), "--test_number=42");
    return "--flagfile=" + folder_.File("file0");
  };
  MOE_ASSERT_OK(ParseFlags(Args{write_chain(8)}));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 42);
  EXPECT_THAT(ParseFlags(Args{write_chain(9)}),
              StatusIs(kInvalid, HasSubstr("--flagfile: want at most 8")));

  folder_.Write("self", "--flagfile=" + folder_.File("self"));
  EXPECT_THAT(ParseFlags(Args{"--flagfile=" + folder_.File("self")}),
              StatusIs(kInvalid, HasSubstr("--flagfile: want at most 8")));
}

TEST(FlagsHelpTest, TellsNameHelpAndDefaultOfTheFlagsOfAFile) {
  const std::string help = FlagsHelp("tests/server/common/flags_test.cc");
  EXPECT_THAT(
      help,
      AllOf(
          HasSubstr("--test_number  A number of the test. (default: \"7\")\n"),
          HasSubstr("--test_switch  A switch of the test. (default: "
                    "\"false\")\n"),
          HasSubstr("--test_list"), HasSubstr("--test_text")));
  EXPECT_EQ(std::count(help.begin(), help.end(), '\n'), 4);
  EXPECT_LT(help.find("--test_list"), help.find("--test_number"));
  EXPECT_EQ(FlagsHelp("no_such_file.cc"), "");
}

// Runs with stdout on stderr, which is what a death test sees.
void RunProgram(std::vector<std::string> args) {
  dup2(STDERR_FILENO, STDOUT_FILENO);
  args.insert(args.begin(), "program");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  for (const std::string& rest :
       ParseCommandLineOrExit(static_cast<int>(argv.size()), argv.data(),
                              "Does things.", "flags_test.cc")) {
    std::fprintf(stderr, "rest %s\n", rest.c_str());
  }
  std::fprintf(stderr, "number %d\n", absl::GetFlag(FLAGS_test_number));
  std::exit(5);
}

TEST(ParseCommandLineOrExitDeathTest, ReturnsWhatIsNotAFlag) {
  EXPECT_EXIT(RunProgram({"--test_number=3", "info", "--", "--help"}),
              ExitedWithCode(5), "rest info\nrest --help\nnumber 3\n");
}

TEST(ParseCommandLineOrExitDeathTest, EndsWithTwoAndOneLineOnAMistake) {
  EXPECT_EXIT(RunProgram({"--test_number=x"}), ExitedWithCode(2),
              "^error: --test_number: can't use \"x\"[^\n]*\n$");
}

TEST(ParseCommandLineOrExitDeathTest, AnswersHelp) {
  for (const char* flag : {"--help", "-h"}) {
    EXPECT_EXIT(RunProgram({flag}), ExitedWithCode(0),
                "Does things.\n\nFlags:\n.*\n.*--test_number");
  }
  // Even among mistakes.
  EXPECT_EXIT(RunProgram({"--no_such_flag", "--help"}), ExitedWithCode(0),
              "Flags:");
}

TEST(ParseCommandLineOrExitDeathTest, AnswersVersion) {
  EXPECT_EXIT(RunProgram({"--version"}), ExitedWithCode(0),
              "^flags_test [0-9]+\\.[0-9]+\\.[0-9]+ \\([0-9a-z]+\\)\n$");
}

}  // namespace
}  // namespace moe
