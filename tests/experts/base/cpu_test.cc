#include "experts/base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace moe {
namespace {

struct QuotaCase {
  std::string name;
  std::vector<std::pair<std::string, std::string>> files;
  std::optional<double> want;
};

class CpuLimitsTest : public ::testing::TestWithParam<QuotaCase> {};

TEST_P(CpuLimitsTest, ReadsTheQuota) {
  const std::string root = ::testing::TempDir() + "/cpu_" + GetParam().name;
  for (const auto& [path, text] : GetParam().files) {
    std::filesystem::create_directories(
        std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  EXPECT_EQ(DetectCpuLimits(root).quota_cpus, GetParam().want);
  std::filesystem::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(
    All, CpuLimitsTest,
    ::testing::Values(
        QuotaCase{"NothingMounted", {}, std::nullopt},
        QuotaCase{"V2Unlimited",
                  {{"/proc/self/cgroup", "0::/\n"},
                   {"/sys/fs/cgroup/cpu.max", "max 100000\n"}},
                  std::nullopt},
        QuotaCase{"V2Root",
                  {{"/proc/self/cgroup", "0::/\n"},
                   {"/sys/fs/cgroup/cpu.max", "250000 100000\n"}},
                  2.5},
        QuotaCase{"V2TightestAncestorCounts",
                  {{"/proc/self/cgroup", "0::/pod/box\n"},
                   {"/sys/fs/cgroup/pod/cpu.max", "100000 100000\n"},
                   {"/sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n"}},
                  1.0},
        QuotaCase{
            "V1",
            {{"/proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n"},
             {"/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "150000\n"},
             {"/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n"}},
            1.5},
        QuotaCase{"V1Unlimited",
                  {{"/proc/self/cgroup", "3:cpu:/\n"},
                   {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                   {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
                  std::nullopt},
        QuotaCase{"Garbage",
                  {{"/proc/self/cgroup", "::\nx\n0::/../..\n"},
                   {"/sys/fs/cgroup/cpu.max", "?"}},
                  std::nullopt}),
    [](const auto& test) { return test.param.name; });

TEST(CpuLimitsThreadsTest, IsTheSmallerOfAffinityAndQuotaRoundedUp) {
  EXPECT_EQ(
      (CpuLimits{.affinity_cpus = 8, .quota_cpus = std::nullopt}.threads()), 8);
  EXPECT_EQ((CpuLimits{.affinity_cpus = 8, .quota_cpus = 2.5}.threads()), 3);
  EXPECT_EQ((CpuLimits{.affinity_cpus = 2, .quota_cpus = 64}.threads()), 2);
  EXPECT_EQ((CpuLimits{.affinity_cpus = 8, .quota_cpus = 0.1}.threads()), 1);
}

// A and B stand for the first two CPUs that this process may use.
struct NumaCase {
  std::string name;
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::vector<char>> want;  // where A and B are
};

class NumaNodesTest : public ::testing::TestWithParam<NumaCase> {};

TEST_P(NumaNodesTest, AreWhatTheSystemLists) {
  const std::string root = ::testing::TempDir() + "/numa_" + GetParam().name;
  const std::vector<int> cpus = DetectNumaNodes("/nonexistent").front();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two CPUs";
  for (const auto& [name, text] : GetParam().files) {
    const std::string path = root + "/sys/devices/system/node/" + name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream file(path);
    for (const char c : text) {
      if (c == 'A' || c == 'B') {
        file << cpus[static_cast<size_t>(c - 'A')];
      } else {
        file << c;
      }
    }
  }
  std::vector<std::vector<char>> got;
  for (const auto& node : DetectNumaNodes(root)) {
    got.emplace_back();
    for (const int cpu : node) {
      if (cpu == cpus[0]) got.back().push_back('A');
      if (cpu == cpus[1]) got.back().push_back('B');
    }
  }
  EXPECT_EQ(got, GetParam().want);
  std::filesystem::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(
    All, NumaNodesTest,
    ::testing::Values(NumaCase{"NothingMounted", {}, {{'A', 'B'}}},
                      NumaCase{"One",
                               {{"online", "0\n"}, {"node0/cpulist", "A,B\n"}},
                               {{'A', 'B'}}},
                      NumaCase{"Two",
                               {{"online", "0-1\n"},
                                {"node0/cpulist", "B\n"},
                                {"node1/cpulist", "A\n"}},
                               {{'B'}, {'A'}}},
                      NumaCase{"NumbersMayHaveGaps",
                               {{"online", "0,7\n"},
                                {"node0/cpulist", "A\n"},
                                {"node7/cpulist", "B\n"}},
                               {{'A'}, {'B'}}},
                      NumaCase{"NodesOfMemoryAloneDoNotCount",
                               {{"online", "0-2\n"},
                                {"node0/cpulist", "A\n"},
                                {"node1/cpulist", "\n"},
                                {"node2/cpulist", "B\n"}},
                               {{'A'}, {'B'}}},
                      NumaCase{"NodesOfOtherCpusDoNotCount",
                               {{"online", "0-1\n"},
                                {"node0/cpulist", "100000-100003,100009\n"},
                                {"node1/cpulist", "A-B\n"}},
                               {{'A', 'B'}}},
                      NumaCase{"CpusOfNoNodeGoToTheFirst",
                               {{"online", "0-1\n"}, {"node1/cpulist", "B\n"}},
                               {{'B', 'A'}}},
                      NumaCase{"Garbage",
                               {{"online", "0-1,-3-x\n"},
                                {"node0/cpulist", "9-\n"},
                                {"node1/cpulist", "?"}},
                               {{'A', 'B'}}}),
    [](const auto& test) { return test.param.name; });

TEST(BindThisThreadTest, LeavesTheThreadTheseCpus) {
  const std::vector<int> all = DetectNumaNodes("/nonexistent").front();
  std::thread([&all] {
    BindThisThread({all.back()});
    EXPECT_EQ(DetectNumaNodes("/nonexistent"), NumaNodes{{all.back()}});
    BindThisThread({1 << 19});  // There is none: nothing changes.
    BindThisThread({});
    EXPECT_EQ(DetectNumaNodes("/nonexistent"), NumaNodes{{all.back()}});
  }).join();
}

TEST(KeepWhereWrittenTest, TakesAnyPieceOfMemory) {
  std::vector<char> memory(5 << 20, 'x');
  for (const int64_t bytes : {0, 1, 4095, 4096, 5 << 20}) {
    KeepWhereWritten(memory.data(), bytes);
  }
  KeepWhereWritten(memory.data() + 4095, 4098);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), 'x'), 5 << 20);
}

TEST(MemoryLimitTest, IsTheSmallestOnTheWayUp) {
  const std::string root = ::testing::TempDir() + "/memory_limit";
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(
        std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  const int64_t all = DetectMemoryLimit(root);
  EXPECT_GT(all, 0) << "what the machine has";
  write("/proc/self/cgroup", "4:memory:/a\n0::/pod/box\n");
  write("/sys/fs/cgroup/pod/box/memory.max", "max\n");
  EXPECT_EQ(DetectMemoryLimit(root), all);
  write("/sys/fs/cgroup/pod/memory.max", "1048576\n");
  EXPECT_EQ(DetectMemoryLimit(root), 1048576);
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "524288\n");
  EXPECT_EQ(DetectMemoryLimit(root), 524288);
  // What v1 says where there is no limit.
  write("/sys/fs/cgroup/pod/memory.max", "max\n");
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
        "9223372036854771712\n");
  EXPECT_EQ(DetectMemoryLimit(root), all);
  std::filesystem::remove_all(root);
}

TEST(CpuLimitsThreadsTest, FollowsTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(DetectCpuLimits().affinity_cpus, 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace moe
