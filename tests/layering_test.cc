// Holds the sources to the project's layout: which folder may include what, and
// that every source file is part of the build. Reads the tree, runs none of it.

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// What a folder of sources may include: folders of this project and libraries,
// by the names that LayerOf gives them. The longest matching folder counts.
const std::map<std::string, std::set<std::string>>& AllowedIncludes() {
  static const std::map<std::string, std::set<std::string>> allowed = {
      {"experts/base", {"experts/base", "absl"}},
      {"experts/checkpoint",
       {"experts/base", "experts/checkpoint", "experts", "absl", "nlohmann"}},
      {"experts",
       {"experts/base", "experts/checkpoint", "experts", "absl", "dnnl", "hwy",
        "tbb"}},
      {"router",
       {"experts/base", "experts/checkpoint", "experts", "router", "absl"}},
      {"server",
       {"experts/base", "experts/checkpoint", "experts", "router", "proto",
        "server", "absl", "grpc", "openssl", "protobuf", "prometheus"}},
      {"tests",
       {"experts/base", "experts/checkpoint", "experts", "router", "proto",
        "server", "tests", "absl", "hwy", "tbb", "nlohmann", "grpc", "openssl",
        "protobuf", "prometheus", "gtest", "benchmark"}},
  };
  return allowed;
}

// True if `path` lies in `folder` or below it.
bool IsIn(const std::string& path, const std::string& folder) {
  return path.rfind(folder + "/", 0) == 0;
}

// The folder of AllowedIncludes or the library that an include names; empty for
// the standard library and the system; "unknown" for all else.
std::string LayerOf(const std::string& include) {
  static const std::regex generated(R"(.*\.pb\.h)");
  if (std::regex_match(include, generated) && !IsIn(include, "google")) {
    return "proto";
  }
  std::string layer;
  for (const auto& [folder, unused] : AllowedIncludes()) {
    if (IsIn(include, folder) && folder.size() > layer.size()) layer = folder;
  }
  if (!layer.empty()) return layer;
  if (include.find('/') == std::string::npos) {
    static const std::regex dnnl(R"(dnnl.*\.h(pp)?)");
    return std::regex_match(include, dnnl) ? "dnnl" : "";
  }
  static const std::map<std::string, std::string> libraries = {
      {"absl", "absl"},
      {"benchmark", "benchmark"},
      {"gmock", "gtest"},
      {"google/protobuf", "protobuf"},
      {"grpc", "grpc"},
      {"grpcpp", "grpc"},
      {"gtest", "gtest"},
      {"hwy", "hwy"},
      {"nlohmann", "nlohmann"},
      {"openssl", "openssl"},
      {"oneapi/dnnl", "dnnl"},
      {"oneapi/tbb", "tbb"},
      {"prometheus", "prometheus"},
      {"tbb", "tbb"},
      {"arpa", ""},
      {"linux", ""},
      {"net", ""},
      {"netinet", ""},
      {"sys", ""},
  };
  for (const auto& [folder, name] : libraries) {
    if (IsIn(include, folder)) return name;
  }
  return "unknown";
}

// One line for each include of `text` that the file at `path` may not have.
std::vector<std::string> Violations(const std::string& path,
                                    const std::string& text) {
  const std::set<std::string>* allowed = nullptr;
  std::size_t longest = 0;
  for (const auto& [folder, includes] : AllowedIncludes()) {
    if (IsIn(path, folder) && folder.size() > longest) {
      allowed = &includes;
      longest = folder.size();
    }
  }
  if (allowed == nullptr) return {path + ": no source file belongs here"};

  static const std::regex include_line(
      R"(^\s*#\s*include\s*(?:"([^"]+)\"|<([^>]+)>))");
  const std::string refused = path + ": may not include ";
  std::vector<std::string> violations;
  std::istringstream lines(text);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_search(line, match, include_line)) continue;
    const std::string include = match[1].matched ? match[1] : match[2];
    const std::string layer = LayerOf(include);
    if (!layer.empty() && allowed->count(layer) == 0) {
      violations.push_back(refused + include);
    }
  }
  return violations;
}

std::string ReadFile(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct File {
  std::string path;  // from the project's top, as in "experts/base/dtype.h"
  std::string text;
};

// Every file of the source folders whose path matches `pattern`.
std::vector<File> FilesMatching(const std::string& pattern) {
  const fs::path top = MOE_SOURCE_DIR;
  const std::regex wanted(pattern);
  std::vector<File> files;
  for (const char* folder : {"experts", "router", "proto", "server", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(top / folder)) {
      const std::string path = entry.path().lexically_relative(top).string();
      if (std::regex_match(path, wanted)) {
        files.push_back({path, ReadFile(entry.path())});
      }
    }
  }
  return files;
}

TEST(LayeringTest, FindsWhatMayNotBeIncluded) {
  EXPECT_THAT(Violations("experts/base/a.h",
                         "#include <vector>\n"
                         "#include <sys/mman.h>\n"
                         "#include \"absl/status/status.h\"\n"
                         "#include \"experts/base/b.h\"\n"),
              IsEmpty());
  EXPECT_THAT(Violations("experts/base/a.h", "#include \"experts/shard.h\""),
              ElementsAre("experts/base/a.h: may not include experts/shard.h"));
  EXPECT_THAT(Violations("experts/a.cc", "#include \"router/gate.h\""),
              SizeIs(1));
  EXPECT_THAT(Violations("experts/a.cc", "  # include <nlohmann/json.hpp>"),
              SizeIs(1));
  EXPECT_THAT(Violations("router/a.cc", "#include \"dnnl.hpp\""), SizeIs(1));
  EXPECT_THAT(Violations("router/a.h", "#include \"grpcpp/server.h\""),
              SizeIs(1));
  EXPECT_THAT(Violations("router/a.cc", "#include \"proto/moe/v1/moe.pb.h\""),
              SizeIs(1));
  EXPECT_THAT(Violations("server/a.cc", "#include \"gtest/gtest_prod.h\""),
              SizeIs(1));
  EXPECT_THAT(Violations("server/a.cc", "#include \"new_library/x.h\""),
              SizeIs(1));
  EXPECT_THAT(Violations("deploy/a.cc", ""), SizeIs(1));
}

TEST(LayeringTest, EveryIncludeFollowsTheLayers) {
  const std::vector<File> files = FilesMatching(R"(.*\.(h|cc))");
  ASSERT_FALSE(files.empty());
  std::vector<std::string> violations;
  for (const File& file : files) {
    for (std::string& violation : Violations(file.path, file.text)) {
      violations.push_back(std::move(violation));
    }
  }
  EXPECT_THAT(violations, IsEmpty());
}

TEST(LayeringTest, OneSourceFileIncludesOneDnn) {
  static const std::regex onednn(
      R"(#\s*include\s*["<](oneapi/dnnl/)?dnnl\w*\.h)");
  std::vector<std::string> including;
  for (const File& file : FilesMatching(R"(.*\.(h|cc))")) {
    if (std::regex_search(file.text, onednn)) {
      including.push_back(file.path);
    }
  }
  EXPECT_THAT(including, ElementsAre(::testing::EndsWith(".cc")));
}

// A source that no CMakeLists.txt names is neither compiled nor run, and
// nothing else would tell.
TEST(LayeringTest, EverySourceIsPartOfTheBuild) {
  const fs::path top = MOE_SOURCE_DIR;
  const std::string compiled =
      ReadFile(fs::path(MOE_BINARY_DIR) / "compile_commands.json");
  ASSERT_FALSE(compiled.empty());
  std::vector<std::string> orphans;
  for (const File& file : FilesMatching(R"(.*\.cc)")) {
    std::string entry = (top / file.path).string();
    entry.insert(0, R"("file": ")").push_back('"');
    if (compiled.find(entry) == std::string::npos) orphans.push_back(file.path);
  }
  for (const File& file : FilesMatching(".*_test[.]py")) {
    const fs::path path = top / file.path;
    const std::string cmake = ReadFile(path.parent_path() / "CMakeLists.txt");
    if (cmake.find(path.filename().string()) == std::string::npos) {
      orphans.push_back(file.path);
    }
  }
  EXPECT_THAT(orphans, IsEmpty()) << "in the tree but in no CMakeLists.txt";
}

}  // namespace
}  // namespace moe
