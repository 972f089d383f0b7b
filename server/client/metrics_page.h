// A page of Prometheus metrics, as a client sees it.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/client/connection.h"

namespace moe {

// Thread-compatible: a plain value.
class MetricsPage {
 public:
  using Labels = std::map<std::string, std::string>;
  struct Sample {
    Labels labels{};
    double value = 0;
  };

  // The samples of a page in Prometheus' text format; lines that are none are
  // skipped.
  static MetricsPage Parse(absl::string_view text);

  // Gets http://ADDRESS/metrics; address: "HOST:PORT".
  // password: of HTTP basic authentication; empty: none is sent.
  // Errors: INVALID_ARGUMENT for no such address; UNAVAILABLE if nothing
  // answers within some seconds; UNAUTHENTICATED; RESOURCE_EXHAUSTED for a page
  // of more than 256 MB; INTERNAL with the HTTP status of any other answer.
  static absl::StatusOr<MetricsPage> Fetch(const std::string& address,
                                           const std::string& password);

  // All samples of a name, in the order of the page, whose they are.
  absl::Span<const Sample> All(const std::string& name) const;
  // The sum of those that have all of `labels`; absent if there is none.
  std::optional<double> Sum(const std::string& name,
                            const Labels& labels = {}) const;

 private:
  std::map<std::string, std::vector<Sample>> samples_;
};

// The page of a server.
// metrics_address: empty: port 9464 of the host that `connection` names, whose
// token is sent, too.
// Errors: those of Fetch.
absl::StatusOr<MetricsPage> FetchMetrics(const ConnectionOptions& connection,
                                         const std::string& metrics_address);

}  // namespace moe
