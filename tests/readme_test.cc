// Holds the tables of server/FLAGS.md and server/METRICS.md to the programs:
// every flag has a row with its default, every metric has one, and nothing else
// is listed. Holds README.md to its width.

#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics/metrics.h"
#include "server/metrics/process_metrics.h"

namespace moe {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Defaults by flag.
using Flags = std::map<std::string, std::string>;

std::string ReadPage(const std::string& name) {
  std::ifstream file(MOE_SOURCE_DIR "/" + name);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str(), "") << name;
  return text.str();
}

// From the heading "## TITLE" to the next one.
std::string Section(const std::string& page, const std::string& title) {
  const size_t begin = page.find("\n## " + title + "\n");
  if (begin == std::string::npos) {
    ADD_FAILURE() << "no section " << title;
    return "";
  }
  return page.substr(begin + 1, page.find("\n## ", begin + 1) - begin - 1);
}

// All matches of the first group of `pattern`, in their order.
std::vector<std::string> Find(const std::string& text, const char* pattern) {
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end;
       ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

// The cells of each row of the tables in `text` that begins with code.
std::vector<std::vector<std::string>> Rows(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, "| `")) {
      rows.push_back(absl::StrSplit(line, '|'));
    }
  }
  return rows;
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

// What a program says of its flags.
Flags FlagsOf(const std::string& program) {
  const std::regex line(R"re(  --([a-z_]+)  .*\(default: "(.*)"\))re");
  Flags flags;
  std::smatch match;
  for (const absl::string_view text :
       absl::StrSplit(RunProgram(program + " --help"), '\n')) {
    const std::string help(text);
    if (std::regex_match(help, match, line)) flags[match[1]] = match[2];
  }
  return flags;
}

// What the page says of them.
Flags DocumentedFlags(const std::string& program) {
  const std::regex code("`(.*)`");
  Flags flags;
  for (const auto& cells :
       Rows(Section(ReadPage("server/FLAGS.md"), program))) {
    std::smatch match;
    std::string value;
    if (std::regex_search(cells.at(2), match, code)) value = match[1];
    for (const std::string& name : Find(cells.at(1), "--([a-z_]+)")) {
      EXPECT_TRUE(flags.emplace(name, value).second) << name << " twice";
    }
  }
  return flags;
}

TEST(FlagsPageTest, HasTheFlagsOfEachProgramWithTheirDefaults) {
  for (const char* name :
       {"moe-server", "moe-client", "moe-bench", "moe-inspect"}) {
    SCOPED_TRACE(name);
    const Flags flags = FlagsOf(absl::StrCat(MOE_BIN_DIR "/", name));
    EXPECT_EQ(flags.empty(), std::string(name) == "moe-inspect");
    EXPECT_EQ(DocumentedFlags(name), flags);
  }
}

TEST(MetricsPageTest, HasEachMetricOnceAndNothingElse) {
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
  std::vector<std::string> got;
  for (const auto& cells : Rows(ReadPage("server/METRICS.md"))) {
    for (std::string& name : Find(cells.at(1), "((?:moe|process)_[a-z_]+)")) {
      got.push_back(std::move(name));
    }
  }
  EXPECT_THAT(got, SizeIs(want.size()));
  EXPECT_EQ(std::set<std::string>(got.begin(), got.end()), want);
}

TEST(ReadmeTest, LinesAreShorterThan120Columns) {
  std::vector<std::string> long_lines;
  for (const absl::string_view line :
       absl::StrSplit(ReadPage("README.md"), '\n')) {
    if (line.size() >= 120) long_lines.emplace_back(line);
  }
  EXPECT_THAT(long_lines, IsEmpty());
}

// A path in the tree, or an anchor of this page.
TEST(ReadmeTest, LinksLeadToFiles) {
  for (const std::string& link :
       Find(ReadPage("README.md"), R"(\]\(([^)#:]+)(?:#[^)]*)?\))")) {
    EXPECT_TRUE(std::ifstream(MOE_SOURCE_DIR "/" + link).good()) << link;
  }
}

}  // namespace
}  // namespace moe
