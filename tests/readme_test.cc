// Holds README.md to the programs: every flag of moe-server has a row with its
// default, and every metric has one; nothing else is listed.

#include <cstdio>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/metrics.h"
#include "server/metrics/process_metrics.h"

namespace moe {
namespace {

std::string Section(const std::string& title) {
  std::ifstream file(MOE_SOURCE_DIR "/README.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find("\n## " + title);
  EXPECT_NE(begin, std::string::npos) << title;
  return all.substr(begin + 1, all.find("\n## ", begin + 1) - begin - 1);
}

// All matches of the first group of `pattern`.
std::set<std::string> Find(const std::string& text, const char* pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end;
       ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

// Only the rows of the table, not the text around it.
std::string FirstColumn(const std::string& section) {
  std::string column;
  std::istringstream lines(section);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| `", 0) == 0) {
      column += line.substr(0, line.find(" | ", 2)) + "\n";
    }
  }
  return column;
}

std::string RunProgram(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    output.append(buffer, n);
  }
  pclose(pipe);
  return output;
}

TEST(ReadmeTest, ListsTheFlagsOfTheServer) {
  std::set<std::string> want =
      Find(RunProgram(MOE_SERVER " --help"), "\n  --([a-z_]+)  ");
  EXPECT_GT(want.size(), 10);
  want.erase("flagfile");
  want.erase("version");
  EXPECT_EQ(Find(FirstColumn(Section("Flags of moe-server")), "--([a-z_]+)"),
            want);
}

TEST(ReadmeTest, ListsTheMetrics) {
  Metrics metrics;
  WeightsBytes weights;
  weights[WeightFormat::kF32] = 1;
  metrics.AddModel("m", {{.layer = 0, .num_experts = 1}});
  metrics.ModelReady("m", weights, 1);
  metrics.AddShard("s");
  metrics.SetTlsExpiry(absl::Now());
  std::set<std::string> want;
  for (const auto& family : metrics.registry()->Collect()) {
    want.insert(family.name);
  }
  for (const auto& family : ProcessMetrics().Collect()) {
    want.insert(family.name);
  }
  EXPECT_EQ(Find(FirstColumn(Section("Metrics")), "((?:moe|process)_[a-z_]+)"),
            want);
}

}  // namespace
}  // namespace moe
