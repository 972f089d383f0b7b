#include "server/metrics/metrics_endpoint.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/metrics/process_metrics.h"

namespace moe {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address,
    const std::shared_ptr<prometheus::Registry>& registry,
    std::function<bool(const std::string&)> password) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  // The library reports a port that is taken, or no address at all, by an
  // exception.
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
    endpoint->process_ = std::make_shared<ProcessMetrics>();
    endpoint->exposer_->RegisterCollectable(registry);
    endpoint->exposer_->RegisterCollectable(endpoint->process_);
    if (password != nullptr) {
      endpoint->exposer_->RegisterAuth(
          [password = std::move(password)](const std::string& /*user*/,
                                           const std::string& given) {
            return password(given);
          },
          "moe-server");
    }
    const std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
    if (!ports.empty()) {
      const std::string host = address.substr(0, address.rfind(':'));
      endpoint->address_ = absl::StrCat(host, ":", ports.front());
      return endpoint;
    }
  } catch (const std::exception&) {
  }
  return absl::UnavailableError(
      absl::StrCat("--metrics_address: can't listen on ", address,
                   "; is the port in use, or not allowed for this user?"));
}

}  // namespace moe
