// The HTTP endpoint that shows metrics.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/registry.h"

namespace moe {

// Serves a registry, and what there is to say of the process, at
// http://ADDRESS/metrics.
class MetricsEndpoint {
 public:
  // address:  "HOST:PORT"; port 0 picks a free one.
  // password: if set, asked of each caller (HTTP basic authentication, any
  //           user name) whether it is right. Thread-safe.
  // Errors: UNAVAILABLE if the address can't be bound.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& address,
      const std::shared_ptr<prometheus::Registry>& registry,
      std::function<bool(const std::string&)> password = nullptr);

  // "HOST:PORT" as bound.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint() = default;
  std::string address_;
  std::shared_ptr<prometheus::Collectable> process_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace moe
