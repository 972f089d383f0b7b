// What this process may really use: the CPUs of its affinity mask and where
// they are, and the limits of its cgroup; never what the host has.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// What the operating system grants this process.
struct CpuLimits {
  int affinity_cpus =
      1;  // CPUs in the affinity mask (taskset, cpuset), at least 1
  std::optional<double> quota_cpus;  // cgroup v1 or v2 CPU quota in CPUs (2.5 =
                                     // 250 ms per 100 ms); absent = none

  // min(affinity, quota rounded up), at least 1.
  int threads() const;
};

// Reads the limits of the calling process. `root` is prefixed to /proc and /sys
// paths, for tests. A file that is missing or unreadable counts as "no limit";
// never fails.
CpuLimits DetectCpuLimits(const std::string& root = "");

// The CPUs of each NUMA node.
using NumaNodes = std::vector<std::vector<int>>;

// The CPUs in the affinity mask of the calling thread by the node that they
// belong to, nodes without any left out: one node where the system knows of
// none. `root` as above.
NumaNodes DetectNumaNodes(const std::string& root = "");

// Makes the calling thread run on these CPUs only; where that is not allowed,
// it goes on as it was.
void BindThisThread(const std::vector<int>& cpus);

// Asks the system to leave the pages of this memory on the NUMA node of the
// thread that first writes them, where it would move them after their readers
// otherwise. Containers may withhold that; then it does nothing. Not all of the
// first and last page counts.
void KeepWhereWritten(void* memory, int64_t bytes);

// Bytes of memory that the calling process may have: the smallest limit of its
// cgroups (v1 or v2), or all that the machine has. `root` as above.
int64_t DetectMemoryLimit(const std::string& root = "");

}  // namespace moe
