// Everything the server measures. Each part has a file of its own in this
// folder, with the names of its metrics; those of the process itself are in
// process_metrics.cc.
//
// Children are created when the server starts or a model is loaded and kept as
// references: nothing is looked up on the request path.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/machine_rates.h"
#include "experts/weights_bytes.h"
#include "prometheus/registry.h"
#include "router/ffn_layer.h"
#include "server/metrics/batch_metrics.h"
#include "server/metrics/expert_metrics.h"
#include "server/metrics/model_metrics.h"
#include "server/metrics/request_metrics.h"
#include "server/metrics/shard_metrics.h"
#include "server/metrics/system_metrics.h"
#include "server/metrics/transport_metrics.h"

namespace moe {

// Thread-safe.
class Metrics {
 public:
  // isa: of the kernels in use, for moe_build_info
  explicit Metrics(ExpertMetrics detail = ExpertMetrics::kAuto,
                   absl::string_view isa = BestKernels().isa)
      : registry_(std::make_shared<prometheus::Registry>()),
        requests_(*registry_),
        batches_(*registry_),
        models_(*registry_, detail),
        transport_(*registry_),
        system_(*registry_, isa),
        shards_(*registry_) {}

  // Before the first model.
  void SetMachine(const MachineRates& rates) {
    system_.SetMachine(rates);
    models_.SetMachine(rates);
  }
  void SetThreads(int compute_threads, double quota_cpus) {
    system_.SetThreads(compute_threads, quota_cpus);
  }
  void SetMemoryLimit(int64_t bytes) { system_.SetMemoryLimit(bytes); }
  void SetHugePages(int64_t bytes) { system_.SetHugePages(bytes); }
  // Whether health says SERVING.
  void SetServing(bool serving) { system_.SetServing(serving); }

  // As ModelFamilies has them.
  void ModelAnnounced(absl::string_view model) { models_.Announced(model); }
  void ModelWithdrawn(absl::string_view model) { models_.Withdrawn(model); }
  ModelMetrics AddModel(absl::string_view model,
                        absl::Span<const LayerCost> layers) {
    return models_.Add(model, layers);
  }
  void ModelReady(absl::string_view model, const WeightsBytes& weights,
                  double load_seconds) {
    models_.Ready(model, weights, load_seconds);
  }
  void ModelLoaded(bool ok) { models_.Loaded(ok); }

  // As ShardFamilies has them.
  ShardMetrics AddShard(const std::string& name) { return shards_.Add(name); }
  void ShardsDone(double slowest_seconds, double mean_seconds) {
    shards_.Done(slowest_seconds, mean_seconds);
  }

  // As RequestMetrics has them.
  void RequestStarted() { requests_.Started(); }
  void Received(Method method, int64_t bytes) {
    requests_.Received(method, bytes);
  }
  void RequestDone(Method method, absl::StatusCode code, double seconds,
                   int64_t sent_bytes) {
    requests_.Done(method, code, seconds, sent_bytes);
  }
  void Rejected(Rejection reason) { requests_.Rejected(reason); }

  // As TransportMetrics has them.
  void ConnectionRefused() { transport_.ConnectionRefused(); }
  void CallStalled() { transport_.CallStalled(); }
  void TlsReloaded(bool ok) { transport_.TlsReloaded(ok); }
  void SetTlsExpiry(absl::Time expiry) { transport_.SetTlsExpiry(expiry); }

  // As BatchMetrics has them.
  void SetQueueLimits(int64_t tokens, int64_t bytes) {
    batches_.SetQueueLimits(tokens, bytes);
  }
  void SetQueueTokens(int64_t tokens) { batches_.SetQueueTokens(tokens); }
  void AddQueueBytes(int64_t bytes) { batches_.AddQueueBytes(bytes); }
  void QueueWait(double seconds) { batches_.QueueWait(seconds); }
  void BatchDone(const ForwardStats& stats, double decode_seconds,
                 double encode_seconds, int64_t tokens, int64_t requests) {
    batches_.Done(stats, decode_seconds, encode_seconds, tokens, requests);
  }
  void LeftOut(int64_t experts) { batches_.LeftOut(experts); }

  // For MetricsEndpoint.
  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  RequestMetrics requests_;
  BatchMetrics batches_;
  ModelFamilies models_;
  TransportMetrics transport_;
  SystemMetrics system_;
  ShardFamilies shards_;
};

}  // namespace moe
