// Holds the sources to a rule that no tool of ours checks: no object with
// static storage is destroyed at exit, when threads and other such objects may
// still use it. Reads the tree, runs none of it.

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

// Types whose destructor does nothing, beside built-in ones.
constexpr const char* kTrivial[] = {
    R"(bool|char|float|double|s?size_t|u?int\d*(_t)?)",
    R"(std::array<(float|int|uint8_t), \d+>|NibbleTable|X86Features)",
    R"((moe::)?NoDestructor<.*>)"};

// `static T name = ...`, in a function, a class or a file; or a constant of a
// file. With an argument list, `T name(...)` may be a function, but for a
// constant. Pointers and references do not match: they are not destroyed.
constexpr const char* kDefinitions[] = {
    R"(\s*(?:inline )?static ([\w:]+(?:<.*>)?) \w+(?:\[.*\])?(?: =|\{|;).*)",
    R"(\s*(?:inline )?static const ([\w:]+(?:<.*>)?) \w+(?:\[.*\])?(?: =|\{|;|\().*)",
    R"((?:inline )?const ([\w:]+(?:<.*>)?) \w+(?:\[.*\])?(?: =|\{|;|\().*)"};

class Finder {
 public:
  Finder() {
    for (const char* pattern : kDefinitions) definitions_.emplace_back(pattern);
    for (const char* pattern : kTrivial) trivial_.emplace_back(pattern);
  }

  // Whether a line defines an object with static storage that is destroyed.
  bool DefinesStaticObject(const std::string& line) const {
    // Few lines pass this, and the patterns are slow.
    if (line.find("static ") == std::string::npos &&
        line.rfind("const ", 0) != 0 && line.rfind("inline ", 0) != 0) {
      return false;
    }
    for (const std::regex& definition : definitions_) {
      std::smatch match;
      if (std::regex_match(line, match, definition) &&
          match[1] != "constexpr" && !IsTrivial(match[1])) {
        return true;
      }
    }
    return false;
  }

 private:
  bool IsTrivial(const std::string& type) const {
    for (const std::regex& trivial : trivial_) {
      if (std::regex_match(type, trivial)) return true;
    }
    return false;
  }

  std::vector<std::regex> definitions_;
  std::vector<std::regex> trivial_;
};

TEST(StaticObjectsTest, FindsThoseThatAreDestroyed) {
  const Finder finder;
  for (const char* line : {
           "static std::string name;",
           "  static const std::string name = \"x\";",
           "  static const std::vector<int> tables = FillAll();",
           "  static const std::map<std::string, std::set<int>> allowed = {",
           "  static const Models models(HeldExperts());",
           "  static const std::regex word{\"a\"};",
           "static std::mutex mutex;",
           "const std::vector<float> kX = {0.5F};",
           "inline const std::string kName(\"x\");",
           "const Tensor kTensors[] = {",
       }) {
    EXPECT_TRUE(finder.DefinesStaticObject(line)) << line;
  }
  for (const char* line : {
           "static constexpr size_t kMax = 64;",
           "  static const int count = 3;",
           "  static const NoDestructor<std::vector<int>> all(Fill());",
           "  static const X86Features features = Detect();",
           "  static std::string Contents(const std::string& path) {",
           "  static absl::StatusOr<Config> Open(const std::string& path);",
           "  static const std::string& Name();",
           "static const char* const kName = \"x\";",
           "  const std::string name = \"of a function\";",
           "static_assert(sizeof(int) == 4);",
           "const Kernels& BestKernels() { return *AllKernels().front(); }",
       }) {
    EXPECT_FALSE(finder.DefinesStaticObject(line)) << line;
  }
}

TEST(StaticObjectsTest, NoneIsDestroyedAtExit) {
  const fs::path top = MOE_SOURCE_DIR;
  const Finder finder;
  std::vector<std::string> found;
  for (const char* folder : {"experts", "router", "server", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(top / folder)) {
      const fs::path& path = entry.path();
      if (path.extension() != ".h" && path.extension() != ".cc") continue;
      if (path.filename() == "static_objects_test.cc") continue;
      std::ifstream file(path);
      for (std::string line; std::getline(file, line);) {
        if (finder.DefinesStaticObject(line)) {
          found.push_back(path.lexically_relative(top).string() + ": " + line);
        }
      }
    }
  }
  EXPECT_THAT(found, IsEmpty())
      << "want constexpr, or NoDestructor of experts/base";
}

}  // namespace
}  // namespace moe
