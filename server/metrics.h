// Everything the server measures, and the HTTP endpoint that shows it.
//
// All names are here. Children are created when the server starts or a model is
// loaded and kept as references: nothing is looked up on the request path.

#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "router/ffn_layer.h"

namespace moe {

// The RPCs that are counted; of a stream, each of its messages.
enum class Method : uint8_t {
  kForward,
  kForwardStream,
  kRoute,
  kListModels,
  kGetModel,
  kModelInfer,
  kModelStreamInfer,
  kModelMetadata,
  kModelConfig
};
inline constexpr int kNumMethods = 9;

// Why a request was turned away before compute.
enum class Rejection : uint8_t { kQueueFull, kDraining, kExpired, kCancelled };
inline constexpr int kNumRejections = 4;

// The counters of one layer.
struct LayerMetrics {
  std::vector<prometheus::Counter*> expert_tokens;  // [num_experts]
};

// Thread-safe.
class Metrics {
 public:
  Metrics();

  // Counters of a model's layers, created at 0.
  LayerMetrics AddLayer(absl::string_view model, int layer,
                        int64_t num_experts);
  void SetModel(absl::string_view model, int64_t weights_bytes,
                double load_seconds);
  void SetThreads(int compute_threads, double quota_cpus);

  void RequestStarted() { requests_in_flight_->Increment(); }
  void RequestDone(Method method, absl::StatusCode code, double seconds);
  void Rejected(Rejection reason);

  void ConnectionRefused() { connections_refused_->Increment(); }
  void TlsReloaded(bool ok) {
    (ok ? tls_reloads_ok_ : tls_reloads_failed_)->Increment();
  }

  // One batch through one layer.
  void BatchDone(const ForwardStats& stats, double decode_seconds,
                 double encode_seconds, int64_t tokens, int64_t requests);
  void QueueWait(double seconds) { queue_wait_->Observe(seconds); }
  void SetQueueTokens(int64_t tokens) {
    queue_tokens_->Set(static_cast<double>(tokens));
  }

  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

 private:
  // Stages of the router, with decode before and encode after them.
  static constexpr int kNumTimedStages = kNumStages + 2;

  std::shared_ptr<prometheus::Registry> registry_;
  // [method][canonical status code 0..16]
  std::array<std::array<prometheus::Counter*, 17>, kNumMethods> requests_;
  std::array<prometheus::Histogram*, kNumMethods> request_duration_;
  std::array<prometheus::Histogram*, kNumTimedStages> stage_duration_;
  std::array<prometheus::Counter*, kNumRejections> rejected_;
  prometheus::Gauge* requests_in_flight_;
  prometheus::Histogram* batch_tokens_;
  prometheus::Histogram* batch_requests_;
  prometheus::Counter* tokens_;
  prometheus::Counter* nonfinite_rows_;
  prometheus::Gauge* queue_tokens_;
  prometheus::Histogram* queue_wait_;
  prometheus::Family<prometheus::Counter>* expert_tokens_;
  prometheus::Family<prometheus::Gauge>* model_weights_bytes_;
  prometheus::Family<prometheus::Gauge>* model_load_duration_;
  prometheus::Counter* connections_refused_;
  prometheus::Counter* tls_reloads_ok_;
  prometheus::Counter* tls_reloads_failed_;
  prometheus::Gauge* threads_;
  prometheus::Gauge* quota_;
};

// Serves a registry at http://ADDRESS/metrics.
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
  std::unique_ptr<prometheus::Exposer> exposer_;
};

// "OK", "INVALID_ARGUMENT", ...: the canonical name of a status code.
std::string CodeName(absl::StatusCode code);

}  // namespace moe
