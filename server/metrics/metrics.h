// Everything the server measures, and the HTTP endpoint that shows it.
//
// All names are in metrics.cc, but those of the process itself, which are in
// process_metrics.cc. Children are created when the server starts or a model is
// loaded and kept as references: nothing is looked up on the request path.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "experts/kernels/machine_rates.h"
#include "experts/weights_bytes.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "router/ffn_layer.h"
#include "router/models/model.h"

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
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
  kDescribeShard,
  kForwardExperts
};
inline constexpr int kNumMethods = 15;

// Why a request was turned away before compute.
enum class Rejection : uint8_t { kQueueFull, kDraining, kExpired, kCancelled };
inline constexpr int kNumRejections = 4;

// How much is told about experts.
enum class ExpertMetrics : uint8_t {
  kAuto,   // kFull while all models together have at most kMaxExpertSeries
           // experts; kLayer for the models beyond
  kFull,   // of each expert: tokens; and kLayer
  kLayer,  // of each layer: tokens, time, how evenly its experts are loaded
  kOff,    // of each model only
};
// A Prometheus server likes up to about ten thousand series of one target.
inline constexpr int64_t kMaxExpertSeries = 10'000;

// Errors: INVALID_ARGUMENT naming what there is.
absl::StatusOr<ExpertMetrics> ParseExpertMetrics(absl::string_view name);

// A layer, and what running it costs at least.
struct LayerCost {
  int layer = 0;
  int64_t num_experts = 0;  // 0 = dense
  // Of one routed expert, or of the dense FFN: weights that are read if it has
  // any row, and operations per row.
  double expert_bytes = 0;
  double expert_flops = 0;
  // Of the shared expert, which every row visits.
  double shared_bytes = 0;
  double shared_flops = 0;
};

// The cost of a layer that is in memory.
LayerCost CostOf(const ModelLayer& layer);

class Metrics;

// The counters of one layer. For one thread at a time.
class LayerMetrics {
 public:
  // One batch that has run through the experts.
  // expert_offsets: as LayerWorkspace::expert_offsets, [experts + 1].
  void BatchDone(const ForwardStats& stats, int64_t tokens,
                 absl::Span<const int32_t> expert_offsets);

 private:
  friend class Metrics;
  void CountExperts(int64_t tokens, absl::Span<const int32_t> expert_offsets);

  LayerCost cost_;
  MachineRates rates_;  // 0 = not measured
  // Of the model.
  prometheus::Counter* expert_seconds_ = nullptr;
  prometheus::Counter* expert_bytes_ = nullptr;
  prometheus::Counter* expert_flops_ = nullptr;
  prometheus::Counter* roofline_seconds_ = nullptr;
  // Null or empty where less is told.
  prometheus::Counter* tokens_ = nullptr;
  prometheus::Counter* seconds_ = nullptr;
  prometheus::Gauge* balancedness_ = nullptr;
  std::vector<prometheus::Counter*> expert_tokens_;  // [num_experts]
  // Rows per expert, older ones fading out. [num_experts]
  std::vector<double> recent_;
};

// What a front counts about one shard.
struct ShardMetrics {
  prometheus::Gauge* up = nullptr;
  prometheus::Gauge* in_flight_rows = nullptr;
  prometheus::Counter* rows = nullptr;
  prometheus::Counter* sent_bytes = nullptr;
  prometheus::Counter* received_bytes = nullptr;
  prometheus::Histogram* duration = nullptr;
  prometheus::Counter* retries = nullptr;
  prometheus::Counter* hedges = nullptr;
  // [canonical status code 0..16]; OK is never counted.
  std::array<prometheus::Counter*, 17> failures{};
};

// What AddModel has made.
struct ModelMetrics {
  ExpertMetrics detail = ExpertMetrics::kFull;  // never kAuto
  // As given. What they count into is of the Metrics, which must outlive them.
  std::vector<std::unique_ptr<LayerMetrics>> layers{};
};

// Thread-safe.
class Metrics {
 public:
  // isa: of the kernels in use, for moe_build_info
  explicit Metrics(ExpertMetrics detail = ExpertMetrics::kAuto,
                   absl::string_view isa = BestKernels().isa);

  // Before the first model.
  void SetMachine(const MachineRates& rates);
  // A model, or a new version of one, has been loaded, or was no good.
  void ModelLoaded(bool ok) {
    (ok ? model_loads_ok_ : model_loads_failed_)->Increment();
  }
  void SetThreads(int compute_threads, double quota_cpus);
  void SetQueueLimits(int64_t tokens, int64_t bytes);
  void SetMemoryLimit(int64_t bytes);
  void SetHugePages(int64_t bytes);
  // Whether health says SERVING.
  void SetServing(bool serving) { serving_->Set(serving ? 1 : 0); }

  // A model is about to be loaded, unless there is one of that name; it is
  // served no longer.
  void ModelAnnounced(absl::string_view model);
  void ModelWithdrawn(absl::string_view model);
  // The counters of a model and its layers, created at 0; those of a model that
  // had the name before go on.
  ModelMetrics AddModel(absl::string_view model,
                        absl::Span<const LayerCost> layers);
  // It has been loaded and answers.
  void ModelReady(absl::string_view model, const WeightsBytes& weights,
                  double load_seconds);

  // The counters of a shard, created at 0; one that had the name before goes
  // on.
  ShardMetrics AddShard(const std::string& name);
  // How long the shards of one batch took: the slowest, and the mean.
  void ShardsDone(double slowest_seconds, double mean_seconds);

  void RequestStarted() { requests_in_flight_->Increment(); }
  void Received(Method method, int64_t bytes) {
    received_bytes_[static_cast<size_t>(method)]->Increment(
        static_cast<double>(bytes));
  }
  void RequestDone(Method method, absl::StatusCode code, double seconds,
                   int64_t sent_bytes);
  void Rejected(Rejection reason);

  void ConnectionRefused() { connections_refused_->Increment(); }
  void CallStalled() { stalled_calls_->Increment(); }
  void TlsReloaded(bool ok) {
    (ok ? tls_reloads_ok_ : tls_reloads_failed_)->Increment();
  }
  // There is no such metric without TLS.
  void SetTlsExpiry(absl::Time expiry);

  // One batch through one layer, whatever was asked of it.
  void BatchDone(const ForwardStats& stats, double decode_seconds,
                 double encode_seconds, int64_t tokens, int64_t requests);
  void LeftOut(int64_t experts) {
    left_out_experts_->Increment(static_cast<double>(experts));
  }
  void QueueWait(double seconds) { queue_wait_->Observe(seconds); }
  void SetQueueTokens(int64_t tokens) {
    queue_tokens_->Set(static_cast<double>(tokens));
  }
  void AddQueueBytes(int64_t bytes) {
    queue_bytes_->Increment(static_cast<double>(bytes));
  }

  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

 private:
  // Stages of the router, with decode before and encode after them.
  static constexpr int kNumTimedStages = kNumStages + 2;

  // What all models that ever had one name count into.
  struct ModelSeries {
    ExpertMetrics detail = ExpertMetrics::kFull;
    prometheus::Counter* expert_seconds = nullptr;
    prometheus::Counter* expert_bytes = nullptr;
    prometheus::Counter* expert_flops = nullptr;
    prometheus::Counter* roofline_seconds = nullptr;
  };
  ModelSeries SeriesOf(absl::string_view model,
                       absl::Span<const LayerCost> layers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ExpertMetrics detail_;
  std::shared_ptr<prometheus::Registry> registry_;
  // [method][canonical status code 0..16]
  std::array<std::array<prometheus::Counter*, 17>, kNumMethods> requests_;
  std::array<prometheus::Histogram*, kNumMethods> request_duration_;
  std::array<prometheus::Counter*, kNumMethods> received_bytes_;
  std::array<prometheus::Counter*, kNumMethods> sent_bytes_;
  std::array<prometheus::Histogram*, kNumTimedStages> stage_duration_;
  std::array<prometheus::Counter*, kNumRejections> rejected_;
  prometheus::Gauge* requests_in_flight_;
  prometheus::Histogram* batch_tokens_;
  prometheus::Histogram* batch_requests_;
  prometheus::Counter* tokens_;
  prometheus::Counter* nonfinite_rows_;
  prometheus::Counter* left_out_experts_;
  prometheus::Gauge* queue_tokens_;
  prometheus::Gauge* queue_bytes_;
  prometheus::Gauge* max_queue_tokens_;
  prometheus::Gauge* max_queue_bytes_;
  prometheus::Histogram* queue_wait_;
  prometheus::Family<prometheus::Counter>* expert_seconds_;
  prometheus::Family<prometheus::Counter>* expert_bytes_;
  prometheus::Family<prometheus::Counter>* expert_flops_;
  prometheus::Family<prometheus::Counter>* roofline_seconds_;
  prometheus::Family<prometheus::Counter>* layer_tokens_;
  prometheus::Family<prometheus::Counter>* layer_seconds_;
  prometheus::Family<prometheus::Gauge>* balancedness_;
  prometheus::Family<prometheus::Counter>* expert_tokens_;
  prometheus::Family<prometheus::Gauge>* model_ready_;
  prometheus::Family<prometheus::Gauge>* model_weights_bytes_;
  prometheus::Family<prometheus::Gauge>* model_load_duration_;
  prometheus::Counter* model_loads_ok_;
  prometheus::Counter* model_loads_failed_;
  prometheus::Counter* connections_refused_;
  prometheus::Counter* stalled_calls_;
  prometheus::Counter* tls_reloads_ok_;
  prometheus::Counter* tls_reloads_failed_;
  prometheus::Family<prometheus::Gauge>* tls_expiry_;
  prometheus::Gauge* serving_;
  prometheus::Gauge* threads_;
  prometheus::Gauge* quota_;
  prometheus::Gauge* memory_limit_;
  prometheus::Gauge* huge_pages_;
  prometheus::Gauge* read_rate_;
  prometheus::Gauge* flop_rate_;

  prometheus::Family<prometheus::Gauge>* shard_up_;
  prometheus::Family<prometheus::Gauge>* shard_in_flight_rows_;
  prometheus::Family<prometheus::Counter>* shard_rows_;
  prometheus::Family<prometheus::Counter>* shard_bytes_;
  prometheus::Family<prometheus::Histogram>* shard_duration_;
  prometheus::Family<prometheus::Counter>* shard_retries_;
  prometheus::Family<prometheus::Counter>* shard_hedges_;
  prometheus::Family<prometheus::Counter>* shard_failures_;
  prometheus::Family<prometheus::Counter>* shard_slowest_seconds_;
  prometheus::Family<prometheus::Counter>* shard_mean_seconds_;

  absl::Mutex mutex_;
  MachineRates rates_ ABSL_GUARDED_BY(mutex_);
  int64_t expert_series_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::btree_map<std::string, ModelSeries> models_ ABSL_GUARDED_BY(mutex_);
};

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

// "OK", "INVALID_ARGUMENT", ...: the canonical name of a status code.
std::string CodeName(absl::StatusCode code);

}  // namespace moe
