#include "server/models/available_memory.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>

#include "experts/base/cgroups.h"

namespace moe {
namespace {

// The number in a file of one; none also for "max".
std::optional<int64_t> NumberIn(const std::string& path) {
  int64_t number = 0;
  std::ifstream file(path);
  if (!(file >> number)) return std::nullopt;
  return number;
}

// The number behind one of `keys`, the first that a file of "KEY NUMBER" lines
// has.
int64_t NumberOf(const std::string& path,
                 std::initializer_list<const char*> keys) {
  for (const char* wanted : keys) {
    std::ifstream file(path);
    std::string key;
    int64_t number = 0;
    while (file >> key >> number) {
      if (key == wanted) return number;
      file.ignore(256, '\n');
    }
  }
  return 0;
}

// What a cgroup has left; none without a limit.
std::optional<int64_t> LeftIn(const std::string& folder) {
  auto limit = NumberIn(folder + "/memory.max");
  auto used = NumberIn(folder + "/memory.current");
  if (!limit) {  // version 1; without a limit, the largest number of pages
    limit = NumberIn(folder + "/memory.limit_in_bytes");
    used = NumberIn(folder + "/memory.usage_in_bytes");
  }
  if (!limit || !used) return std::nullopt;
  // Page cache is dropped when memory gets short.
  const std::string stat = folder + "/memory.stat";
  const int64_t cache =
      NumberOf(stat, {"total_active_file", "active_file"}) +
      NumberOf(stat, {"total_inactive_file", "inactive_file"});
  return *limit - std::max<int64_t>(*used - cache, 0);
}

}  // namespace

std::optional<int64_t> AvailableMemory(const std::string& root) {
  std::optional<int64_t> least;
  const auto tighten = [&least](std::optional<int64_t> bytes) {
    if (bytes && (!least || *bytes < *least)) least = bytes;
  };
  const int64_t kilobytes = NumberOf(root + "/proc/meminfo", {"MemAvailable:"});
  if (kilobytes > 0) tighten(kilobytes * 1024);
  ForEachCgroup(root, "memory",
                [&](const std::string& folder) { tighten(LeftIn(folder)); });
  if (least) *least = std::max<int64_t>(*least, 0);
  return least;
}

}  // namespace moe
