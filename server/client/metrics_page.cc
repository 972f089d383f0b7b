#include "server/client/metrics_page.h"

#include <algorithm>
#include <fstream>
#include <istream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "server/client/http_get.h"

namespace moe {
namespace {

// Takes a quoted string, with its escapes, from the front of `text`.
bool TakeQuoted(absl::string_view& text, std::string& value) {
  if (!absl::ConsumePrefix(&text, "\"")) return false;
  while (!text.empty() && text.front() != '"') {
    if (text.front() == '\\' && text.size() > 1) {
      text.remove_prefix(1);
      value += text.front() == 'n' ? '\n' : text.front();
    } else {
      value += text.front();
    }
    text.remove_prefix(1);
  }
  return absl::ConsumePrefix(&text, "\"");
}

// Takes {a="b",...} from the front of `text`.
bool TakeLabels(absl::string_view& text, MetricsPage::Labels& labels) {
  if (!absl::ConsumePrefix(&text, "{")) return true;
  while (!absl::ConsumePrefix(&text, "}")) {
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) return false;
    std::string& value = labels[std::string(text.substr(0, equals))];
    text.remove_prefix(equals + 1);
    if (!TakeQuoted(text, value)) return false;
    absl::ConsumePrefix(&text, ",");
  }
  return true;
}

}  // namespace

MetricsPage MetricsPage::Parse(absl::string_view text) {
  MetricsPage page;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripSuffix(line, "\r");
    const size_t end = line.find_first_of("{ ");
    if (line.empty() || line.front() == '#' || end == line.npos) continue;
    const std::string name(line.substr(0, end));
    line.remove_prefix(end);
    Sample sample;
    if (!TakeLabels(line, sample.labels)) continue;
    // A time may follow the value.
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || !absl::SimpleAtod(words.front(), &sample.value)) {
      continue;
    }
    page.samples_[name].push_back(std::move(sample));
  }
  return page;
}

absl::StatusOr<MetricsPage> MetricsPage::Fetch(const std::string& address,
                                               const std::string& password) {
  MOE_ASSIGN_OR_RETURN(
      const std::string text,
      HttpGet("--metrics",
              {.address = address, .path = "/metrics", .password = password}));
  return Parse(text);
}

absl::Span<const MetricsPage::Sample> MetricsPage::All(
    const std::string& name) const {
  const auto found = samples_.find(name);
  if (found == samples_.end()) return {};
  return found->second;
}

std::optional<double> MetricsPage::Sum(const std::string& name,
                                       const Labels& labels) const {
  std::optional<double> sum;
  for (const Sample& sample : All(name)) {
    const bool matches =
        std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
          const auto found = sample.labels.find(label.first);
          return found != sample.labels.end() && found->second == label.second;
        });
    if (matches) sum = sum.value_or(0) + sample.value;
  }
  return sum;
}

absl::StatusOr<MetricsPage> FetchMetrics(const ConnectionOptions& connection,
                                         const std::string& metrics_address) {
  std::string address = metrics_address;
  if (address.empty()) {
    const std::string& server = connection.address;
    const std::string host = absl::StartsWith(server, "unix:")
                                 ? "127.0.0.1"
                                 : server.substr(0, server.rfind(':'));
    address = absl::StrCat(host, ":9464");
  }
  std::string token;
  if (!connection.caller.token_file.empty()) {
    std::getline(std::ifstream(connection.caller.token_file) >> std::ws, token);
  }
  return MetricsPage::Fetch(address,
                            std::string(absl::StripAsciiWhitespace(token)));
}

}  // namespace moe
