#include "server/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"

namespace moe {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

void Append(std::vector<MetricFamily>& families, const char* name,
            const char* help, MetricType type, std::optional<double> value) {
  if (!value.has_value()) return;
  ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
      *value;
  families.push_back(
      {.name = name, .help = help, .type = type, .metric = {metric}});
}

// The fields of /proc/self/stat from the third on, "state".
std::vector<std::string> StatFields(const std::string& root) {
  std::ifstream file(root + "/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // The second is the name of the program, and may hold anything.
  const size_t end = text.rfind(')');
  std::vector<std::string> fields;
  if (end == std::string::npos) return fields;
  std::istringstream rest(text.substr(end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

// Field `number` of proc(5), counted from 1.
std::optional<double> Field(const std::vector<std::string>& fields,
                            size_t number) {
  if (number < 3 || number - 3 >= fields.size()) return std::nullopt;
  double value = 0;
  std::istringstream text(fields[number - 3]);
  if (!(text >> value)) return std::nullopt;
  return value;
}

// When the machine started, in seconds since 1970.
std::optional<double> BootTime(const std::string& root) {
  std::ifstream file(root + "/proc/stat");
  for (std::string line; std::getline(file, line);) {
    double seconds = 0;
    std::string word;
    std::istringstream words(line);
    if (words >> word >> seconds && word == "btime") return seconds;
  }
  return std::nullopt;
}

std::optional<double> OpenFiles(const std::string& root) {
  DIR* folder = opendir((root + "/proc/self/fd").c_str());
  if (folder == nullptr) return std::nullopt;
  int count = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): on a stream of its own it is safe.
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(folder);
  return count - 1;  // without the one just used
}

std::optional<double> MaxFiles() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return std::nullopt;
  return static_cast<double>(files.rlim_cur);
}

std::optional<double> Scaled(std::optional<double> value, double factor) {
  if (value.has_value()) *value *= factor;
  return value;
}

}  // namespace

std::vector<MetricFamily> ProcessMetrics::Collect() const {
  const std::vector<std::string> fields = StatFields(root_);
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  std::optional<double> cpu = Field(fields, 14);  // user
  if (const auto system = Field(fields, 15); cpu && system) *cpu += *system;
  std::optional<double> start = Scaled(Field(fields, 22), tick);
  const auto boot = BootTime(root_);
  start = start && boot ? std::optional(*start + *boot) : std::nullopt;

  std::vector<MetricFamily> families;
  Append(families, "process_cpu_seconds_total",
         "User and system CPU time of the process.", MetricType::Counter,
         Scaled(cpu, tick));
  Append(families, "process_resident_memory_bytes", "Resident memory.",
         MetricType::Gauge, Scaled(Field(fields, 24), page));
  Append(families, "process_virtual_memory_bytes", "Virtual memory.",
         MetricType::Gauge, Field(fields, 23));
  Append(families, "process_threads", "Threads of the process.",
         MetricType::Gauge, Field(fields, 20));
  Append(families, "process_open_fds", "Open file descriptors.",
         MetricType::Gauge, OpenFiles(root_));
  Append(families, "process_max_fds", "File descriptors at most.",
         MetricType::Gauge, MaxFiles());
  Append(families, "process_start_time_seconds",
         "When the process started, in seconds since 1970.", MetricType::Gauge,
         start);
  return families;
}

int64_t HugePagesBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "AnonHugePages:")) continue;
    int64_t kibibytes = 0;
    std::string word;
    std::istringstream(line) >> word >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

}  // namespace moe
