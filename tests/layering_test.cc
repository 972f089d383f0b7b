// Holds the sources to the project's layout: which folder may include what, and
// that every source file is part of the build. Reads the tree, runs none of it.

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "experts/base/no_destructor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A folder of sources, and what its files may include besides the C++ standard
// library.
struct Room {
  std::string folder;
  // Rooms by their folder, or single headers of one.
  std::set<std::string> rooms;
  // Libraries, by the names of LibraryOf.
  std::set<std::string> libraries;
};

// The rooms of the project, lowest first: each includes from itself and from
// rooms above it in this list. A file belongs to the longest folder that holds
// it.
const std::vector<Room>& Rooms() {
  static const NoDestructor<std::vector<Room>> rooms(std::vector<Room>{
      {"experts/base", {}, {"absl", "posix"}},
      {"experts/checkpoint", {"experts/base"}, {"absl", "nlohmann", "posix"}},
      {"experts/kernels", {"experts/base"}, {"absl", "hwy", "posix"}},
      {"experts",
       {"experts/base", "experts/checkpoint", "experts/kernels"},
       {"absl", "dnnl", "posix", "tbb"}},
      {"router",
       {"experts/base", "experts/executor.h", "experts/expert_failures.h",
        "experts/expert_shard.h", "experts/expert_workspace.h",
        "experts/linear.h"},
       {"absl"}},
      {"router/models",
       {"experts/base", "experts/checkpoint", "experts/kernels", "experts",
        "router"},
       {"absl"}},
      {"server/common",
       {"experts/base", "experts/checkpoint"},
       {"absl", "nlohmann", "posix"}},
      {"server/placement",
       {"experts/base", "experts/checkpoint", "server/common"},
       {"absl", "proto", "protobuf"}},
      {"server/wire",
       {"experts/base", "server/common"},
       {"absl", "grpc", "proto", "protobuf", "protobuf internals"}},
      {"server/transport",
       {"experts/base", "server/common"},
       {"absl", "grpc", "openssl", "posix", "sockets"}},
      {"server/metrics",
       {"experts/base", "experts/kernels", "experts", "router", "router/models",
        "server/common"},
       {"absl", "posix", "prometheus"}},
      {"server/engine",
       {"experts/base", "experts/expert_workspace.h", "router", "router/models",
        "server/common", "server/metrics"},
       {"absl"}},
      {"server/models",
       {"experts/base", "experts/checkpoint", "experts", "router",
        "router/models", "server/common", "server/metrics", "server/engine"},
       {"absl", "posix"}},
      {"server/rpc",
       {"experts/base", "router", "router/models", "server/common",
        "server/wire", "server/transport", "server/metrics", "server/engine"},
       {"absl", "grpc", "proto"}},
      {"server/moe_v1",
       {"experts/base", "router", "router/models", "server/common",
        "server/wire", "server/engine", "server/metrics", "server/rpc"},
       {"absl", "grpc", "proto", "stubs"}},
      {"server/open_inference",
       {"experts/base", "router", "router/models", "server/common",
        "server/wire", "server/metrics", "server/engine", "server/models",
        "server/rpc"},
       {"absl", "grpc", "proto", "stubs"}},
      {"server/shards",
       {"experts/base", "experts", "router", "router/models", "server/common",
        "server/placement", "server/wire", "server/transport", "server/metrics",
        "server/engine", "server/rpc"},
       {"absl", "grpc", "proto", "stubs"}},
      {"server/standard",
       {"experts/base", "server/wire", "server/rpc"},
       {"absl", "grpc", "proto", "protobuf", "stubs"}},
      {"server/client",
       {"experts/base", "experts/checkpoint", "server/common",
        "server/placement", "server/wire", "server/transport"},
       {"absl", "civetweb", "grpc", "nlohmann", "posix", "proto", "protobuf",
        "stubs"}},
      {"server/inspect",
       {"experts/base", "experts/checkpoint", "experts", "router",
        "router/models", "server/common"},
       {"absl"}},
      {"server",
       {"experts/base",    "experts/checkpoint",
        "experts/kernels", "experts",
        "router",          "router/models",
        "server/common",   "server/placement",
        "server/wire",     "server/transport",
        "server/metrics",  "server/engine",
        "server/models",   "server/rpc",
        "server/moe_v1",   "server/open_inference",
        "server/shards",   "server/standard",
        "server/client",   "server/inspect"},
       {"absl", "grpc", "nlohmann", "posix", "proto", "sockets"}},
      {"tests",
       {"experts/base",    "experts/checkpoint",
        "experts/kernels", "experts",
        "router",          "router/models",
        "server/common",   "server/placement",
        "server/wire",     "server/transport",
        "server/metrics",  "server/engine",
        "server/models",   "server/rpc",
        "server/moe_v1",   "server/open_inference",
        "server/shards",   "server/standard",
        "server/client",   "server/inspect",
        "server"},
       {"absl", "benchmark", "grpc", "gtest", "hwy", "nlohmann", "openssl",
        "posix", "prometheus", "proto", "protobuf", "protobuf internals",
        "sockets", "stubs", "tbb"}},
  });
  return *rooms;
}

// True if `path` lies in `folder` or below it.
bool IsIn(const std::string& path, const std::string& folder) {
  return path.rfind(folder + "/", 0) == 0;
}

// The room that a file belongs to; null if it belongs to none.
const Room* RoomOf(const std::string& path) {
  const Room* found = nullptr;
  for (const Room& room : Rooms()) {
    if (IsIn(path, room.folder) &&
        (found == nullptr || room.folder.size() > found->folder.size())) {
      found = &room;
    }
  }
  return found;
}

// The library that a header of others belongs to: the first whose pattern
// matches. Empty for the standard library, "unknown" for what is not listed:
// whoever adds a library says here which rooms may use it.
std::string LibraryOf(const std::string& include) {
  struct Library {
    std::string name;
    std::regex headers;
  };
  static const NoDestructor<std::vector<Library>> libraries(
      std::vector<Library>{
          {"", std::regex("[a-z_0-9]+")},  // <vector>, <cstdint>
          {"absl", std::regex("absl/.*")},
          {"benchmark", std::regex("benchmark/.*")},
          {"civetweb", std::regex("civetweb[.]h")},
          {"dnnl", std::regex("(oneapi/dnnl/)?dnnl.*")},
          {"stubs", std::regex("(?!grpcpp/).*[.]grpc[.]pb[.]h")},
          {"protobuf internals",
           std::regex(
               "google/protobuf/(wire_format_lite|io/.*|generated_.*)[.]h")},
          {"protobuf", std::regex("google/protobuf/.*")},
          {"proto", std::regex(".*[.]pb[.]h")},
          {"grpc", std::regex("grpc(pp)?/.*")},
          {"gtest", std::regex("(gtest|gmock)/.*")},
          {"hwy", std::regex("hwy/.*")},
          {"nlohmann", std::regex("nlohmann/.*")},
          {"openssl", std::regex("openssl/.*")},
          {"prometheus", std::regex("prometheus/.*")},
          {"sockets", std::regex("(arpa|net|netinet)/.*|netdb[.]h|"
                                 "sys/(epoll|eventfd|socket|un)[.]h")},
          {"posix",
           std::regex(
               "(dirent|dlfcn|fcntl|malloc|poll|pthread|sched|signal)[.]h|"
               "unistd[.]h|"
               "(cpuid|immintrin)[.]h|linux/.*|sys/[a-z_]+[.]h")},
          {"tbb", std::regex("(oneapi/)?tbb/.*")},
      });
  for (const Library& library : *libraries) {
    if (std::regex_match(include, library.headers)) return library.name;
  }
  return "unknown";
}

bool MayInclude(const Room& room, const std::string& include) {
  if (const Room* other = RoomOf(include)) {
    return other == &room || room.rooms.count(other->folder) > 0 ||
           room.rooms.count(include) > 0;
  }
  const std::string library = LibraryOf(include);
  return library.empty() || room.libraries.count(library) > 0;
}

// One line for each include of `text` that the file at `path` may not have.
std::vector<std::string> Violations(const std::string& path,
                                    const std::string& text) {
  const Room* const room = RoomOf(path);
  if (room == nullptr) return {path + ": no source file belongs here"};
  static const NoDestructor<std::regex> include_line(
      R"(^\s*#\s*include\s*(?:"([^"]+)\"|<([^>]+)>))");
  std::vector<std::string> violations;
  std::istringstream lines(text);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_search(line, match, *include_line)) continue;
    const std::string include = match[1].matched ? match[1] : match[2];
    if (!MayInclude(*room, include)) {
      violations.push_back(path + ": may not include " + include);
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
  EXPECT_THAT(Violations("deploy/a.cc", ""), SizeIs(1));
  const struct {
    std::string path;
    std::string include;
  } cases[] = {
      // Upwards.
      {"experts/a.cc", "\"router/top_k.h\""},
      {"experts/kernels/a.h", "\"experts/expert_shard.h\""},
      {"router/a.h", "\"router/models/model.h\""},
      {"router/a.cc", "\"experts/local_expert_shard.h\""},
      {"router/a.cc", "\"experts/kernels/kernels.h\""},
      {"server/engine/a.cc", "\"server/rpc/stream_call.h\""},
      {"server/wire/a.cc", "\"server/engine/engine.h\""},
      {"server/common/a.cc", "\"server/server_options.h\""},
      // Sideways.
      {"server/moe_v1/a.cc", "\"server/open_inference/infer_request.h\""},
      {"server/open_inference/a.cc", "\"server/shards/shard_fleet.h\""},
      {"server/shards/a.h", "\"server/moe_v1/moe_service.h\""},
      {"server/rpc/a.h", "\"server/shards/shard_fleet.h\""},
      {"server/client/a.cc", "\"server/models/model_manager.h\""},
      // Libraries, by quotes and by brackets, with a slash and without.
      {"experts/a.cc", "<nlohmann/json.hpp>"},
      {"router/a.cc", "\"dnnl.hpp\""},
      {"router/a.h", "\"grpcpp/server.h\""},
      {"router/a.cc", "\"moe/v1/moe.pb.h\""},
      {"router/a.cc", "<unistd.h>"},
      {"server/engine/a.cc", "\"prometheus/counter.h\""},
      {"server/engine/a.cc", "\"grpcpp/support/byte_buffer.h\""},
      {"server/engine/a.cc", "\"moe/v1/moe.pb.h\""},
      {"server/models/a.cc", "<grpcpp/server.h>"},
      {"server/rpc/a.cc", "\"google/protobuf/wire_format_lite.h\""},
      {"server/rpc/a.cc", "\"moe/v1/moe.grpc.pb.h\""},
      {"server/shards/a.cc", "\"prometheus/gauge.h\""},
      {"server/rpc/a.cc", "<sys/socket.h>"},
      {"server/transport/a.cc", "\"civetweb.h\""},
      {"server/a.cc", "\"gtest/gtest_prod.h\""},
      // What nobody has listed.
      {"server/a.cc", "\"new_library/x.h\""},
      {"server/a.cc", "<new_library.h>"},
      {"server/a.cc", "<Eigen>"},
  };
  for (const auto& [path, include] : cases) {
    EXPECT_THAT(Violations(path, "  # include " + include), SizeIs(1))
        << path << " includes " << include;
  }
}

// Which makes circles impossible, too.
TEST(LayeringTest, RoomsIncludeFromLowerOnesOnly) {
  std::set<std::string> lower;
  for (const Room& room : Rooms()) {
    for (const std::string& other : room.rooms) {
      const Room* const owner =
          lower.count(other) > 0 ? nullptr : RoomOf(other);
      EXPECT_TRUE(lower.count(other) > 0 ||
                  (owner != nullptr && lower.count(owner->folder) > 0))
          << room.folder << " may include " << other
          << ", which is not below it";
    }
    lower.insert(room.folder);
  }
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
  static const NoDestructor<std::regex> onednn(
      R"(#\s*include\s*["<](oneapi/dnnl/)?dnnl\w*\.h)");
  std::vector<std::string> including;
  for (const File& file : FilesMatching(R"(.*\.(h|cc))")) {
    if (std::regex_search(file.text, *onednn)) {
      including.push_back(file.path);
    }
  }
  EXPECT_THAT(including, ElementsAre(::testing::EndsWith(".cc")));
}

// What protobuf does not promise to keep is known in one place.
TEST(LayeringTest, OneRoomUsesTheInternalsOfProtobuf) {
  std::set<std::string> rooms;
  for (const File& file :
       FilesMatching(R"((experts|router|server)/.*\.(h|cc))")) {
    if (file.text.find("protobuf::internal") != std::string::npos) {
      rooms.insert(RoomOf(file.path)->folder);
    }
  }
  EXPECT_THAT(rooms, ElementsAre("server/wire"));
}

// What a header silences would stay silent in whatever includes it.
TEST(LayeringTest, HeadersGiveBackTheDiagnosticsThatTheyChange) {
  static const NoDestructor<std::regex> pragma(
      R"(#\s*pragma\s+(?:GCC|clang)\s+diagnostic\s+(\w+))");
  for (const File& file : FilesMatching(R"(.*\.h)")) {
    SCOPED_TRACE(file.path);
    int pushed = 0;
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), *pragma),
         end;
         it != end; ++it) {
      const std::string word = (*it)[1];
      if (word == "pop") --pushed;
      EXPECT_GE(pushed, word == "push" || word == "pop" ? 0 : 1);
      if (word == "push") ++pushed;
    }
    EXPECT_EQ(pushed, 0);
  }
}

// A newcomer finds the file for a change in the README of its folder.
TEST(LayeringTest, EverySourceIsNamedInTheReadmeOfItsFolder) {
  const fs::path top = MOE_SOURCE_DIR;
  std::set<std::string> missing;
  for (const File& file :
       FilesMatching(R"((experts|router|server)/.*\.(h|cc))")) {
    const fs::path path(file.path);
    const std::string readme = ReadFile(top / path.parent_path() / "README.md");
    const std::regex name("\\b" + path.stem().string() + "\\b");
    if (!std::regex_search(readme, name)) missing.insert(file.path);
  }
  EXPECT_THAT(missing, IsEmpty());
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
