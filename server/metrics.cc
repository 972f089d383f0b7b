#include "server/metrics.h"

#include <cmath>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/matmul_onednn.h"
#include "server/version.h"

namespace moe {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Histogram;

constexpr std::array<const char*, kNumMethods> kMethodNames = {
    "Forward",    "ForwardStream",    "Route",         "ListModels", "GetModel",
    "ModelInfer", "ModelStreamInfer", "ModelMetadata", "ModelConfig"};
constexpr std::array<const char*, kNumRejections> kRejectionNames = {
    "queue_full", "draining", "expired", "cancelled"};
constexpr std::array<const char*, kNumStages + 2> kStageNames = {
    "decode", "gate", "top_k", "dispatch", "experts", "combine", "encode"};

// first, 2 first, 4 first, ...
Histogram::BucketBoundaries Doubling(double first, int count) {
  Histogram::BucketBoundaries bounds;
  bounds.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) bounds.push_back(std::ldexp(first, i));
  return bounds;
}

// From 1 microsecond to 16 seconds: a token through a small layer takes
// microseconds, a large batch seconds.
Histogram::BucketBoundaries SecondsBuckets() { return Doubling(1e-6, 25); }

// 1, 2, 4, ... 65536.
Histogram::BucketBoundaries CountBuckets() { return Doubling(1, 17); }

}  // namespace

std::string CodeName(absl::StatusCode code) {
  return absl::StatusCodeToString(code);
}

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {
  prometheus::Registry& r = *registry_;
  auto& requests = BuildCounter()
                       .Name("moe_requests_total")
                       .Help("Requests answered, by method and status code.")
                       .Register(r);
  auto& duration = BuildHistogram()
                       .Name("moe_request_duration_seconds")
                       .Help("Time from receiving a request to its answer.")
                       .Register(r);
  for (size_t m = 0; m < kNumMethods; ++m) {
    for (size_t code = 0; code < requests_[m].size(); ++code) {
      requests_[m][code] = &requests.Add(
          {{"method", kMethodNames[m]},
           {"code", CodeName(static_cast<absl::StatusCode>(code))}});
    }
    request_duration_[m] =
        &duration.Add({{"method", kMethodNames[m]}}, SecondsBuckets());
  }
  auto& stages = BuildHistogram()
                     .Name("moe_stage_duration_seconds")
                     .Help("Time of one batch in one stage.")
                     .Register(r);
  for (size_t s = 0; s < stage_duration_.size(); ++s) {
    stage_duration_[s] =
        &stages.Add({{"stage", kStageNames[s]}}, SecondsBuckets());
  }
  auto& rejected = BuildCounter()
                       .Name("moe_rejected_requests_total")
                       .Help("Requests turned away before compute, by reason.")
                       .Register(r);
  for (size_t reason = 0; reason < kNumRejections; ++reason) {
    rejected_[reason] = &rejected.Add({{"reason", kRejectionNames[reason]}});
  }
  requests_in_flight_ = &BuildGauge()
                             .Name("moe_requests_in_flight")
                             .Help("Requests received and not yet answered.")
                             .Register(r)
                             .Add({});
  batch_tokens_ = &BuildHistogram()
                       .Name("moe_batch_tokens")
                       .Help("Tokens in a batch given to the engine.")
                       .Register(r)
                       .Add({}, CountBuckets());
  batch_requests_ = &BuildHistogram()
                         .Name("moe_batch_requests")
                         .Help("Requests in a batch given to the engine.")
                         .Register(r)
                         .Add({}, CountBuckets());
  tokens_ = &BuildCounter()
                 .Name("moe_tokens_total")
                 .Help("Tokens computed.")
                 .Register(r)
                 .Add({});
  nonfinite_rows_ = &BuildCounter()
                         .Name("moe_nonfinite_rows_total")
                         .Help("Input rows with NaN or Inf, answered with NaN.")
                         .Register(r)
                         .Add({});
  queue_tokens_ = &BuildGauge()
                       .Name("moe_queue_tokens")
                       .Help("Tokens admitted and waiting for the engine.")
                       .Register(r)
                       .Add({});
  queue_wait_ = &BuildHistogram()
                     .Name("moe_queue_wait_seconds")
                     .Help("Time a request waited for the engine.")
                     .Register(r)
                     .Add({}, SecondsBuckets());
  expert_tokens_ = &BuildCounter()
                        .Name("moe_expert_tokens_total")
                        .Help("Tokens sent to each expert.")
                        .Register(r);
  model_weights_bytes_ = &BuildGauge()
                              .Name("moe_model_weights_bytes")
                              .Help("Memory of a model's weights.")
                              .Register(r);
  model_load_duration_ = &BuildGauge()
                              .Name("moe_model_load_duration_seconds")
                              .Help("Time that loading a model took.")
                              .Register(r);
  connections_refused_ =
      &BuildCounter()
           .Name("moe_refused_connections_total")
           .Help("Connections refused because there were too many.")
           .Register(r)
           .Add({});
  auto& tls_reloads = BuildCounter()
                          .Name("moe_tls_reloads_total")
                          .Help(
                              "Changes of the certificate files: taken, or "
                              "no good and the old ones kept.")
                          .Register(r);
  tls_reloads_ok_ = &tls_reloads.Add({{"result", "ok"}});
  tls_reloads_failed_ = &tls_reloads.Add({{"result", "failed"}});
  threads_ = &BuildGauge()
                  .Name("moe_compute_threads")
                  .Help("Threads that compute.")
                  .Register(r)
                  .Add({});
  quota_ = &BuildGauge()
                .Name("moe_cgroup_quota_cpus")
                .Help("CPU quota of the cgroup in CPUs, 0 if there is none.")
                .Register(r)
                .Add({});
  BuildGauge()
      .Name("moe_build_info")
      .Help("Always 1; the labels say what runs.")
      .Register(r)
      .Add({{"version", kVersion},
            {"commit", kCommit},
            {"onednn", OneDnnVersion()}})
      .Set(1);
}

LayerMetrics Metrics::AddLayer(absl::string_view model, int layer,
                               int64_t num_experts) {
  LayerMetrics metrics;
  for (int64_t e = 0; e < num_experts; ++e) {
    metrics.expert_tokens.push_back(
        &expert_tokens_->Add({{"model", std::string(model)},
                              {"layer", absl::StrCat(layer)},
                              {"expert", absl::StrCat(e)}}));
  }
  return metrics;
}

void Metrics::SetModel(absl::string_view model, int64_t weights_bytes,
                       double load_seconds) {
  const prometheus::Labels labels = {{"model", std::string(model)}};
  model_weights_bytes_->Add(labels).Set(static_cast<double>(weights_bytes));
  model_load_duration_->Add(labels).Set(load_seconds);
}

void Metrics::SetThreads(int compute_threads, double quota_cpus) {
  threads_->Set(compute_threads);
  quota_->Set(quota_cpus);
}

void Metrics::RequestDone(Method method, absl::StatusCode code,
                          double seconds) {
  const auto m = static_cast<size_t>(method);
  const auto c = static_cast<size_t>(code);
  requests_[m][c < requests_[m].size() ? c : 2 /* UNKNOWN */]->Increment();
  request_duration_[m]->Observe(seconds);
  requests_in_flight_->Decrement();
}

void Metrics::Rejected(Rejection reason) {
  rejected_[static_cast<size_t>(reason)]->Increment();
}

void Metrics::BatchDone(const ForwardStats& stats, double decode_seconds,
                        double encode_seconds, int64_t tokens,
                        int64_t requests) {
  stage_duration_.front()->Observe(decode_seconds);
  for (size_t s = 0; s < kNumStages; ++s) {
    stage_duration_[s + 1]->Observe(stats.stage_seconds[s]);
  }
  stage_duration_.back()->Observe(encode_seconds);
  batch_tokens_->Observe(static_cast<double>(tokens));
  batch_requests_->Observe(static_cast<double>(requests));
  tokens_->Increment(static_cast<double>(tokens));
  if (stats.nonfinite_rows > 0) {
    nonfinite_rows_->Increment(static_cast<double>(stats.nonfinite_rows));
  }
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address,
    const std::shared_ptr<prometheus::Registry>& registry,
    std::function<bool(const std::string&)> password) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());
  // The library reports a port that is taken, or no address at all, by an
  // exception.
  try {
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
    endpoint->exposer_->RegisterCollectable(registry);
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
