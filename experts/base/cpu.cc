#include "experts/base/cpu.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "experts/base/cgroups.h"

namespace moe {
namespace {

// The quota of one cgroup directory: v2 has "cpu.max" ("MAX PERIOD" or "max
// PERIOD"), v1 two files.
std::optional<double> QuotaOf(const std::string& directory) {
  double quota = 0;
  double period = 0;
  std::string word;
  if (std::ifstream v2(directory + "/cpu.max"); v2 >> word >> period) {
    if (word == "max") return std::nullopt;
    std::istringstream(word) >> quota;
  } else {
    std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(directory + "/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// The memory limit of one cgroup directory: v2 has "memory.max" (bytes or
// "max"), v1 a number of bytes that is huge where there is no limit.
std::optional<double> MemoryLimitOf(const std::string& directory) {
  for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
    double bytes = 0;
    if (std::ifstream(directory + name) >> bytes && bytes > 0) return bytes;
  }
  return std::nullopt;
}

// The smallest limit of the cgroups of this process.
std::optional<double> CgroupLimit(
    const std::string& root, const std::string& controller,
    std::optional<double> (*limit_of)(const std::string& folder)) {
  std::optional<double> limit;
  ForEachCgroup(root, controller, [&](const std::string& folder) {
    if (const auto here = limit_of(folder);
        here && (!limit || *here < *limit)) {
      limit = here;
    }
  });
  return limit;
}

int AffinityCpus() {
  // The mask may be larger than cpu_set_t on big machines: ask with growing
  // sizes.
  for (int cpus = 1024; cpus <= (1 << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) return 1;
    const size_t size = CPU_ALLOC_SIZE(cpus);
    const bool ok = sched_getaffinity(0, size, set) == 0;
    const int count = ok ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (ok) return std::max(count, 1);
  }
  return 1;
}

}  // namespace

int CpuLimits::threads() const {
  int threads = affinity_cpus;
  if (quota_cpus) {
    threads = std::min(threads, static_cast<int>(std::ceil(*quota_cpus)));
  }
  return std::max(threads, 1);
}

CpuLimits DetectCpuLimits(const std::string& root) {
  return CpuLimits{.affinity_cpus = AffinityCpus(),
                   .quota_cpus = CgroupLimit(root, "cpu", QuotaOf)};
}

int64_t DetectMemoryLimit(const std::string& root) {
  const double all = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<double>(sysconf(_SC_PAGESIZE));
  const auto limit = CgroupLimit(root, "memory", MemoryLimitOf);
  return static_cast<int64_t>(limit ? std::min(*limit, all) : all);
}

}  // namespace moe
