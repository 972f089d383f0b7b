#include "experts/base/cpu.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

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

using LimitOf = std::optional<double> (*)(const std::string& directory);

// A limit binds every cgroup below the one it is set on, hence the smallest on
// the way up counts.
void TightenUpwards(LimitOf limit_of, const std::string& mount,
                    std::string path, std::optional<double>& limit) {
  while (true) {
    if (const auto here = limit_of(mount + path);
        here && (!limit || *here < *limit))
      limit = here;
    if (path.empty()) return;
    path.erase(path.find_last_of('/'));
  }
}

// The smallest limit of the cgroups of this process. v1 has a hierarchy per
// controller, mounted under one of the names in `v1_mounts`.
std::optional<double> CgroupLimit(
    const std::string& root, LimitOf limit_of, const std::string& controller,
    std::initializer_list<const char*> v1_mounts) {
  std::optional<double> limit;
  std::ifstream cgroups(root + "/proc/self/cgroup");
  // Lines are "ID:CONTROLLERS:PATH"; v2 has ID 0 and no controllers.
  for (std::string line; std::getline(cgroups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/" || path.find("/..") != std::string::npos) path.clear();
    if (!path.empty() && path.front() != '/') path.clear();
    const std::string mount = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      TightenUpwards(limit_of, mount, path, limit);
      TightenUpwards(limit_of, mount + "/unified", path, limit);
    } else if (("," + controllers + ",").find("," + controller + ",") !=
               std::string::npos) {
      for (const char* v1_mount : v1_mounts) {
        TightenUpwards(limit_of, mount + "/" + v1_mount, path, limit);
      }
    }
  }
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
  return CpuLimits{
      .affinity_cpus = AffinityCpus(),
      .quota_cpus = CgroupLimit(root, QuotaOf, "cpu", {"cpu", "cpu,cpuacct"})};
}

int64_t DetectMemoryLimit(const std::string& root) {
  const double all = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<double>(sysconf(_SC_PAGESIZE));
  const auto limit = CgroupLimit(root, MemoryLimitOf, "memory", {"memory"});
  return static_cast<int64_t>(limit ? std::min(*limit, all) : all);
}

}  // namespace moe
