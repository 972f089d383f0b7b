#include "experts/base/cpu.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "experts/base/cgroups.h"
#include "experts/base/check.h"

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

// A mask for CPUs [0, cpus), empty: big machines have more than a plain
// cpu_set_t holds.
class CpuMask {
 public:
  explicit CpuMask(int cpus) : cpus_(cpus), set_(CPU_ALLOC(cpus)) {
    MOE_CHECK(set_ != nullptr);
    CPU_ZERO_S(bytes(), get());
  }
  size_t bytes() const { return CPU_ALLOC_SIZE(cpus_); }
  cpu_set_t* get() const { return set_.get(); }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  int cpus_;
  std::unique_ptr<cpu_set_t, Free> set_;
};

// The affinity mask of the calling thread, in order.
std::vector<int> AffinityCpus() {
  for (int cpus = 1024; cpus <= (1 << 20); cpus *= 2) {
    const CpuMask mask(cpus);
    if (sched_getaffinity(0, mask.bytes(), mask.get()) != 0) continue;
    std::vector<int> allowed;
    for (int cpu = 0; cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, mask.bytes(), mask.get())) allowed.push_back(cpu);
    }
    return allowed;
  }
  return {};
}

// The numbers of a list of ranges, as "0-3,8"; up to where it is none.
std::vector<int> NumbersOf(std::istream&& list) {
  constexpr int kMost = 1 << 20;
  std::vector<int> numbers;
  int first = 0;
  while (list >> first) {
    int last = first;
    if (list.peek() == '-' && !(list.ignore() >> last)) break;
    if (first < 0 || last > kMost) break;
    for (int i = first; i <= last; ++i) numbers.push_back(i);
    if (list.peek() != ',') break;
    list.ignore();
  }
  return numbers;
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
  const auto cpus = static_cast<int>(AffinityCpus().size());
  return CpuLimits{.affinity_cpus = std::max(cpus, 1),
                   .quota_cpus = CgroupLimit(root, "cpu", QuotaOf)};
}

NumaNodes DetectNumaNodes(const std::string& root) {
  std::vector<int> left = AffinityCpus();
  NumaNodes nodes;
  const std::string folder = root + "/sys/devices/system/node/";
  for (const int node : NumbersOf(std::ifstream(folder + "online"))) {
    const std::vector<int> of_node = NumbersOf(
        std::ifstream(folder + "node" + std::to_string(node) + "/cpulist"));
    std::vector<int> cpus;
    std::erase_if(left, [&](int cpu) {
      const bool here =
          std::find(of_node.begin(), of_node.end(), cpu) != of_node.end();
      if (here) cpus.push_back(cpu);
      return here;
    });
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
  if (nodes.empty()) nodes.emplace_back();
  nodes.front().insert(nodes.front().end(), left.begin(), left.end());
  return nodes;
}

void BindThisThread(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  const CpuMask mask(*std::max_element(cpus.begin(), cpus.end()) + 1);
  for (const int cpu : cpus) CPU_SET_S(cpu, mask.bytes(), mask.get());
  // A wish.
  static_cast<void>(sched_setaffinity(0, mask.bytes(), mask.get()));
}

void KeepWhereWritten(void* memory, int64_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + static_cast<uintptr_t>(bytes)) / page * page;
  if (begin >= end) return;
  // A wish. Libraries for this call are not worth a dependency.
  static_cast<void>(syscall(SYS_mbind, begin, end - begin, MPOL_LOCAL,
                            /*nodemask=*/nullptr, /*maxnode=*/0, /*flags=*/0));
}

int64_t DetectMemoryLimit(const std::string& root) {
  const double all = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<double>(sysconf(_SC_PAGESIZE));
  const auto limit = CgroupLimit(root, "memory", MemoryLimitOf);
  return static_cast<int64_t>(limit ? std::min(*limit, all) : all);
}

}  // namespace moe
