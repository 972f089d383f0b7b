#include "server/client/metrics_page.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "civetweb.h"

namespace moe {
namespace {

constexpr int kTimeoutMilliseconds = 10'000;

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

// The library counts its users.
class CivetWeb {
 public:
  CivetWeb() { mg_init_library(0); }
  ~CivetWeb() { mg_exit_library(); }
  CivetWeb(const CivetWeb&) = delete;
  CivetWeb& operator=(const CivetWeb&) = delete;
};

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
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics: want HOST:PORT, got \"", address, "\""));
  }
  const std::string host = address.substr(0, colon);
  const CivetWeb library;
  std::array<char, 256> error{};
  const std::unique_ptr<mg_connection, decltype(&mg_close_connection)>
      connection(mg_connect_client(host.c_str(), port, /*use_ssl=*/0,
                                   error.data(), error.size()),
                 &mg_close_connection);
  if (connection == nullptr) {
    return absl::UnavailableError(absl::StrCat("nothing answers at ", address));
  }
  std::string request =
      absl::StrCat("GET /metrics HTTP/1.0\r\nHost: ", host, "\r\n");
  if (!password.empty()) {
    absl::StrAppend(&request, "Authorization: Basic ",
                    absl::Base64Escape(absl::StrCat("doctor:", password)),
                    "\r\n");
  }
  absl::StrAppend(&request, "\r\n");
  mg_write(connection.get(), request.data(), request.size());
  if (mg_get_response(connection.get(), error.data(), error.size(),
                      kTimeoutMilliseconds) < 0) {
    return absl::UnavailableError(
        absl::StrCat(address, " does not answer as an HTTP server does"));
  }
  const int code = mg_get_response_info(connection.get())->status_code;
  if (code == 401) {
    return absl::UnauthenticatedError(
        absl::StrCat(address, " asks for a token: --token_file"));
  }
  if (code != 200) {
    return absl::InternalError(
        absl::StrCat(address, " answers with HTTP status ", code));
  }
  std::string text;
  std::array<char, 16384> buffer{};
  while (true) {
    const int size = mg_read(connection.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
  return Parse(text);
}

const std::vector<MetricsPage::Sample>& MetricsPage::All(
    const std::string& name) const {
  static const std::vector<Sample>* const none = new std::vector<Sample>();
  const auto found = samples_.find(name);
  return found == samples_.end() ? *none : found->second;
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

}  // namespace moe
