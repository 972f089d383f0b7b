#include "server/models/available_memory.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

constexpr char kMeminfo[] =
    "MemTotal:       8000 kB\nMemFree:  100 kB\nMemAvailable:   2000 kB\n";

struct MemoryCase {
  std::string name;
  std::vector<std::pair<std::string, std::string>> files;
  std::optional<int64_t> want;
};

class AvailableMemoryTest : public ::testing::TestWithParam<MemoryCase> {};

TEST_P(AvailableMemoryTest, IsTheLeastThatIsLeft) {
  const TempFolder folder;
  for (const auto& [path, text] : GetParam().files) {
    std::filesystem::create_directories(
        std::filesystem::path(folder.path() + path).parent_path());
    std::ofstream(folder.path() + path) << text;
  }
  EXPECT_EQ(AvailableMemory(folder.path()), GetParam().want);
}

INSTANTIATE_TEST_SUITE_P(
    All, AvailableMemoryTest,
    ::testing::Values(
        MemoryCase{"NothingMounted", {}, std::nullopt},
        MemoryCase{"Machine", {{"/proc/meminfo", kMeminfo}}, 2000 * 1024},
        MemoryCase{"V2Unlimited",
                   {{"/proc/meminfo", kMeminfo},
                    {"/proc/self/cgroup", "0::/\n"},
                    {"/sys/fs/cgroup/memory.max", "max\n"},
                    {"/sys/fs/cgroup/memory.current", "5000\n"}},
                   2000 * 1024},
        MemoryCase{"V2PageCacheCounts",
                   {{"/proc/meminfo", kMeminfo},
                    {"/proc/self/cgroup", "0::/pod\n"},
                    {"/sys/fs/cgroup/pod/memory.max", "10000\n"},
                    {"/sys/fs/cgroup/pod/memory.current", "9000\n"},
                    {"/sys/fs/cgroup/pod/memory.stat",
                     "anon 6000\nactive_file 1000\ninactive_file 2000\n"}},
                   4000},
        MemoryCase{"V2TightestAncestorCounts",
                   {{"/proc/self/cgroup", "0::/pod/box\n"},
                    {"/sys/fs/cgroup/pod/memory.max", "10000\n"},
                    {"/sys/fs/cgroup/pod/memory.current", "9500\n"},
                    {"/sys/fs/cgroup/pod/box/memory.max", "9000\n"},
                    {"/sys/fs/cgroup/pod/box/memory.current", "1000\n"}},
                   500},
        MemoryCase{"V1",
                   {{"/proc/self/cgroup", "4:memory:/x\n"},
                    {"/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9000\n"},
                    {"/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "8000\n"},
                    {"/sys/fs/cgroup/memory/x/memory.stat",
                     "active_file 1\ninactive_file 2\ntotal_active_file 300\n"
                     "total_inactive_file 400\n"}},
                   1700},
        MemoryCase{"OverTheLimit",
                   {{"/proc/self/cgroup", "0::/\n"},
                    {"/sys/fs/cgroup/memory.max", "1000\n"},
                    {"/sys/fs/cgroup/memory.current", "2000\n"}},
                   0},
        MemoryCase{"Garbage",
                   {{"/proc/meminfo", "?"},
                    {"/proc/self/cgroup", "::\nx\n0::/../..\n"},
                    {"/sys/fs/cgroup/memory.max", "?"}},
                   std::nullopt}),
    [](const auto& test) { return test.param.name; });

TEST(AvailableMemoryOfThisMachineTest, IsKnown) {
  EXPECT_GT(AvailableMemory().value_or(0), 0);
}

}  // namespace
}  // namespace moe
