#include "server/metrics/process_metrics.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::prometheus::MetricType;
using ::testing::IsEmpty;

std::map<std::string, double> Values(const ProcessMetrics& metrics) {
  std::map<std::string, double> values;
  for (const auto& family : metrics.Collect()) {
    EXPECT_EQ(family.metric.size(), 1U);
    const auto& metric = family.metric.front();
    values[family.name] = family.type == MetricType::Counter
                              ? metric.counter.value
                              : metric.gauge.value;
  }
  return values;
}

TEST(ProcessMetricsTest, TellsOfThisProcess) {
  const auto values = Values(ProcessMetrics());
  ASSERT_EQ(values.size(), 7U);
  EXPECT_GE(values.at("process_cpu_seconds_total"), 0);
  EXPECT_GT(values.at("process_resident_memory_bytes"), 1e6);
  EXPECT_GT(values.at("process_virtual_memory_bytes"),
            values.at("process_resident_memory_bytes"));
  EXPECT_EQ(values.at("process_threads"), 1);
  EXPECT_GE(values.at("process_open_fds"), 3);
  EXPECT_LT(values.at("process_open_fds"), values.at("process_max_fds"));
  const auto now = static_cast<double>(time(nullptr));
  EXPECT_GT(values.at("process_start_time_seconds"), now - 3600);
  EXPECT_LE(values.at("process_start_time_seconds"), now + 1);
}

TEST(ProcessMetricsTest, CountsFilesThatAreOpened) {
  const ProcessMetrics metrics;
  const double before = Values(metrics).at("process_open_fds");
  const std::ifstream file("/proc/self/stat");
  EXPECT_EQ(Values(metrics).at("process_open_fds"), before + 1);
}

// A program may have any name; its numbers come after the last parenthesis.
TEST(ProcessMetricsTest, ReadsStatAroundTheNameOfTheProgram) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.File("proc/self"));
  folder.Write("proc/self/stat",
               "42 (a) b (c) S 1 1 1 0 -1 0 0 0 0 0 250 150 0 0 20 0 7 0 1000 "
               "8192 3 0");
  folder.Write("proc/stat", "cpu 1 2 3\nbtime 1700000000\n");
  const auto values = Values(ProcessMetrics(folder.path()));
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_EQ(values.at("process_cpu_seconds_total"), 400 / ticks);
  EXPECT_EQ(values.at("process_threads"), 7);
  EXPECT_EQ(values.at("process_virtual_memory_bytes"), 8192);
  EXPECT_EQ(values.at("process_resident_memory_bytes"),
            3.0 * static_cast<double>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(values.at("process_start_time_seconds"), 1.7e9 + 1000 / ticks);
}

TEST(ProcessMetricsTest, LeavesOutWhatItCannotRead) {
  const TempFolder folder;
  const auto values = Values(ProcessMetrics(folder.path()));
  EXPECT_EQ(values.count("process_cpu_seconds_total"), 0U);
  EXPECT_EQ(values.count("process_start_time_seconds"), 0U);
}

}  // namespace
}  // namespace moe
