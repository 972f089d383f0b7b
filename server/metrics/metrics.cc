#include "server/metrics/metrics.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/weight_format.h"
#include "experts/kernels/kernels.h"
#include "experts/matmul_onednn.h"
#include "server/common/version.h"
#include "server/metrics/process_metrics.h"

namespace moe {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

constexpr std::array<const char*, kNumMethods> kMethodNames = {
    "Forward",
    "ForwardStream",
    "Route",
    "ListModels",
    "GetModel",
    "ModelInfer",
    "ModelStreamInfer",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "DescribeShard",
    "ForwardExperts"};
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

// Batches of about that many rows of a layer make its balancedness: an expert
// of 256, of which each row takes 8, then has seen 500, and chance alone moves
// the largest by an eighth.
constexpr double kRecentTokens = 16'384;

Family<Counter>& CounterFamily(Registry& registry, const char* name,
                               const char* help) {
  return BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Gauge>& GaugeFamily(Registry& registry, const char* name,
                           const char* help) {
  return BuildGauge().Name(name).Help(help).Register(registry);
}
Gauge* OneGauge(Registry& registry, const char* name, const char* help) {
  return &GaugeFamily(registry, name, help).Add({});
}

prometheus::Labels OfModel(absl::string_view model) {
  return {{"model", std::string(model)}};
}

}  // namespace

absl::StatusOr<ExpertMetrics> ParseExpertMetrics(absl::string_view name) {
  if (name == "auto") return ExpertMetrics::kAuto;
  if (name == "full") return ExpertMetrics::kFull;
  if (name == "layer") return ExpertMetrics::kLayer;
  if (name == "off") return ExpertMetrics::kOff;
  return absl::InvalidArgumentError(
      absl::StrCat("want auto, full, layer or off, got \"", name, "\""));
}

LayerCost CostOf(const ModelLayer& layer) {
  const ExpertShard& experts = layer.ffn->experts();
  const auto bytes = static_cast<double>(experts.weights().total());
  // Experts that are elsewhere cost nothing here.
  const auto held = static_cast<double>(
      layer.held_experts.empty() ? experts.num_experts()
                                 : int64_t(layer.held_experts.size()));
  LayerCost cost{
      .layer = layer.index,
      .num_experts = layer.ffn->num_experts(),
      .expert_bytes = bytes / held,
      .expert_flops =
          bytes > 0 ? static_cast<double>(experts.spec().flops_per_row()) : 0};
  if (const ExpertShard* shared = layer.ffn->shared_expert()) {
    cost.shared_bytes = static_cast<double>(shared->weights().total());
    cost.shared_flops = static_cast<double>(shared->spec().flops_per_row());
  }
  return cost;
}

void LayerMetrics::BatchDone(const ForwardStats& stats, int64_t tokens,
                             absl::Span<const int32_t> expert_offsets) {
  const auto rows = static_cast<double>(tokens);
  double bytes = tokens > 0 ? cost_.shared_bytes : 0;
  double flops = rows * cost_.shared_flops;
  for (size_t e = 0; e + 1 < expert_offsets.size(); ++e) {
    if (expert_offsets[e + 1] > expert_offsets[e]) bytes += cost_.expert_bytes;
  }
  if (!expert_offsets.empty()) {
    flops += expert_offsets.back() * cost_.expert_flops;
  }
  const double seconds =
      stats.stage_seconds[static_cast<size_t>(Stage::kExperts)];
  expert_seconds_->Increment(seconds);
  expert_bytes_->Increment(bytes);
  expert_flops_->Increment(flops);
  if (rates_.read_gb_per_s > 0 && rates_.peak_gflop_per_s > 0) {
    roofline_seconds_->Increment(
        std::max(bytes / (1e9 * rates_.read_gb_per_s),
                 flops / (1e9 * rates_.peak_gflop_per_s)));
  }
  if (tokens_ == nullptr) return;
  tokens_->Increment(rows);
  seconds_->Increment(std::accumulate(stats.stage_seconds.begin(),
                                      stats.stage_seconds.end(), 0.0));
  if (balancedness_ != nullptr) CountExperts(tokens, expert_offsets);
}

void LayerMetrics::CountExperts(int64_t tokens,
                                absl::Span<const int32_t> expert_offsets) {
  const double fade = std::exp(-static_cast<double>(tokens) / kRecentTokens);
  // Experts that compute nothing come after those that do, and are not in the
  // offsets.
  const size_t num_experts = expert_offsets.size() - 1;
  double sum = 0;
  double most = 0;
  for (size_t e = 0; e < num_experts; ++e) {
    const int32_t rows = expert_offsets[e + 1] - expert_offsets[e];
    if (rows > 0 && !expert_tokens_.empty()) expert_tokens_[e]->Increment(rows);
    recent_[e] = recent_[e] * fade + rows;
    sum += recent_[e];
    most = std::max(most, recent_[e]);
  }
  if (most > 0) {
    balancedness_->Set(sum / (static_cast<double>(num_experts) * most));
  }
}

std::string CodeName(absl::StatusCode code) {
  return absl::StatusCodeToString(code);
}

Metrics::Metrics(ExpertMetrics detail, absl::string_view isa)
    : detail_(detail), registry_(std::make_shared<Registry>()) {
  Registry& r = *registry_;
  auto& requests = BuildCounter()
                       .Name("moe_requests_total")
                       .Help("Requests answered, by method and status code.")
                       .Register(r);
  auto& duration = BuildHistogram()
                       .Name("moe_request_duration_seconds")
                       .Help("Time from receiving a request to its answer.")
                       .Register(r);
  auto& received = CounterFamily(
      r, "moe_received_bytes_total",
      "Bytes of requests that carry tensors, as protocol buffers.");
  auto& sent = CounterFamily(
      r, "moe_sent_bytes_total",
      "Bytes of answers that carry tensors, as protocol buffers.");
  for (size_t m = 0; m < kNumMethods; ++m) {
    received_bytes_[m] = &received.Add({{"method", kMethodNames[m]}});
    sent_bytes_[m] = &sent.Add({{"method", kMethodNames[m]}});
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
  queue_bytes_ =
      OneGauge(r, "moe_queue_bytes",
               "Bytes of requests and answers, from admission until sent.");
  max_queue_tokens_ =
      OneGauge(r, "moe_max_queue_tokens", "The flag --max_queue_tokens.");
  max_queue_bytes_ =
      OneGauge(r, "moe_max_queue_bytes", "The flag --max_queue_bytes.");
  queue_wait_ = &BuildHistogram()
                     .Name("moe_queue_wait_seconds")
                     .Help("Time a request waited for the engine.")
                     .Register(r)
                     .Add({}, SecondsBuckets());
  expert_tokens_ = &BuildCounter()
                        .Name("moe_expert_tokens_total")
                        .Help("Tokens sent to each expert.")
                        .Register(r);
  layer_tokens_ = &CounterFamily(r, "moe_layer_tokens_total",
                                 "Tokens that ran through a layer.");
  layer_seconds_ =
      &CounterFamily(r, "moe_layer_seconds_total",
                     "Time that batches took in a layer, from gate to "
                     "combine.");
  balancedness_ = &GaugeFamily(
      r, "moe_expert_load_balancedness",
      "Mean over maximum of the tokens per expert of a layer, over about its "
      "last 16384 tokens; 1 = even, and before the first.");
  expert_seconds_ =
      &CounterFamily(r, "moe_expert_seconds_total",
                     "Time that the experts of a model computed.");
  expert_bytes_ = &CounterFamily(
      r, "moe_expert_read_bytes_total",
      "Weights of the experts that batches visited, each once a batch.");
  expert_flops_ =
      &CounterFamily(r, "moe_expert_flops_total",
                     "Floating point operations of the experts of a model.");
  roofline_seconds_ = &CounterFamily(
      r, "moe_expert_roofline_seconds_total",
      "The least time that the experts could have taken on this machine.");
  model_ready_ = &GaugeFamily(r, "moe_model_ready",
                              "1 = the model answers, 0 = it is being loaded.");
  model_weights_bytes_ =
      &GaugeFamily(r, "moe_model_weights_bytes",
                   "Memory of a model's weights, by weight format.");
  model_load_duration_ = &BuildGauge()
                              .Name("moe_model_load_duration_seconds")
                              .Help("Time that loading a model took.")
                              .Register(r);
  auto& loads = BuildCounter()
                    .Name("moe_model_loads_total")
                    .Help(
                        "Models and new versions of them: loaded, or no good "
                        "and what was served before kept.")
                    .Register(r);
  model_loads_ok_ = &loads.Add({{"result", "ok"}});
  model_loads_failed_ = &loads.Add({{"result", "failed"}});
  connections_refused_ =
      &BuildCounter()
           .Name("moe_refused_connections_total")
           .Help("Connections refused because there were too many.")
           .Register(r)
           .Add({});
  stalled_calls_ =
      &BuildCounter()
           .Name("moe_stalled_calls_total")
           .Help("Calls ended because their peer did not take an answer.")
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
  tls_expiry_ = &GaugeFamily(
      r, "moe_tls_certificate_expiry_timestamp_seconds",
      "When the certificate in use expires, in seconds since 1970.");
  serving_ = OneGauge(r, "moe_serving",
                      "1 = health says SERVING, 0 = loading or draining.");
  threads_ = OneGauge(r, "moe_compute_threads", "Threads that compute.");
  quota_ = OneGauge(r, "moe_cgroup_quota_cpus",
                    "CPU quota of the cgroup in CPUs, 0 if there is none.");
  memory_limit_ =
      OneGauge(r, "moe_memory_limit_bytes",
               "Memory that the process may have: the limit of its cgroup, or "
               "all that the machine has.");
  huge_pages_ = OneGauge(r, "moe_huge_pages_bytes",
                         "Memory in huge pages, when the last model had been "
                         "loaded.");
  read_rate_ = OneGauge(r, "moe_machine_read_bytes_per_second",
                        "Memory bandwidth, measured at the start; 0 = it was "
                        "not.");
  flop_rate_ =
      OneGauge(r, "moe_machine_flops_per_second",
               "Floating point operations per second at most, measured at the "
               "start; 0 = it was not.");
  left_out_experts_ =
      &CounterFamily(r, "moe_left_out_experts_total",
                     "Experts that tokens had chosen and that were left out, "
                     "since no replica of their shard answered.")
           .Add({});
  shard_up_ = &GaugeFamily(
      r, "moe_shard_up",
      "1 = a replica of the shard answers and holds what it should.");
  shard_in_flight_rows_ = &GaugeFamily(
      r, "moe_shard_in_flight_rows", "Rows sent to a shard and not answered.");
  shard_rows_ = &CounterFamily(r, "moe_shard_rows_total",
                               "Rows that a shard has answered.");
  shard_bytes_ = &CounterFamily(
      r, "moe_shard_bytes_total",
      "Bytes of messages between front and shard, by direction.");
  shard_duration_ = &BuildHistogram()
                         .Name("moe_shard_request_duration_seconds")
                         .Help("Time of a call to a shard that was answered.")
                         .Register(r);
  shard_retries_ =
      &CounterFamily(r, "moe_shard_retries_total",
                     "Calls to a shard that were made again after a failure.");
  shard_hedges_ = &CounterFamily(
      r, "moe_shard_hedges_total",
      "Calls to a shard that were made again since the first took too long.");
  shard_failures_ = &CounterFamily(
      r, "moe_shard_failures_total",
      "Calls to a shard that failed, by status code; a retry may have helped.");
  shard_slowest_seconds_ =
      &CounterFamily(r, "moe_shard_slowest_seconds_total",
                     "Time of the slowest shard of each batch, summed up.");
  shard_mean_seconds_ =
      &CounterFamily(r, "moe_shard_mean_seconds_total",
                     "Mean time of the shards of each batch, summed up.");
  BuildGauge()
      .Name("moe_build_info")
      .Help("Always 1; the labels say what runs.")
      .Register(r)
      .Add({{"version", kVersion},
            {"commit", kCommit},
            {"isa", std::string(isa)},
            {"onednn", OneDnnVersion()}})
      .Set(1);
}

ShardMetrics Metrics::AddShard(const std::string& name) {
  const prometheus::Labels labels = {{"shard", name}};
  const auto with = [&](const char* label, const char* value) {
    prometheus::Labels more = labels;
    more[label] = value;
    return more;
  };
  ShardMetrics metrics{
      .up = &shard_up_->Add(labels),
      .in_flight_rows = &shard_in_flight_rows_->Add(labels),
      .rows = &shard_rows_->Add(labels),
      .sent_bytes = &shard_bytes_->Add(with("direction", "sent")),
      .received_bytes = &shard_bytes_->Add(with("direction", "received")),
      .duration = &shard_duration_->Add(labels, SecondsBuckets()),
      .retries = &shard_retries_->Add(labels),
      .hedges = &shard_hedges_->Add(labels)};
  for (size_t code = 0; code < metrics.failures.size(); ++code) {
    metrics.failures[code] = &shard_failures_->Add(
        with("code", CodeName(static_cast<absl::StatusCode>(code)).c_str()));
  }
  // There from the first shard on.
  shard_slowest_seconds_->Add({});
  shard_mean_seconds_->Add({});
  return metrics;
}

void Metrics::ShardsDone(double slowest_seconds, double mean_seconds) {
  // Add returns what there is.
  shard_slowest_seconds_->Add({}).Increment(slowest_seconds);
  shard_mean_seconds_->Add({}).Increment(mean_seconds);
}

void Metrics::SetMachine(const MachineRates& rates) {
  read_rate_->Set(1e9 * rates.read_gb_per_s);
  flop_rate_->Set(1e9 * rates.peak_gflop_per_s);
  absl::MutexLock lock(&mutex_);
  rates_ = rates;
}

void Metrics::SetThreads(int compute_threads, double quota_cpus) {
  threads_->Set(compute_threads);
  quota_->Set(quota_cpus);
}

void Metrics::SetQueueLimits(int64_t tokens, int64_t bytes) {
  max_queue_tokens_->Set(static_cast<double>(tokens));
  max_queue_bytes_->Set(static_cast<double>(bytes));
}

void Metrics::SetMemoryLimit(int64_t bytes) {
  memory_limit_->Set(static_cast<double>(bytes));
}

void Metrics::SetHugePages(int64_t bytes) {
  huge_pages_->Set(static_cast<double>(bytes));
}

void Metrics::SetTlsExpiry(absl::Time expiry) {
  tls_expiry_->Add({}).Set(static_cast<double>(absl::ToUnixSeconds(expiry)));
}

void Metrics::ModelAnnounced(absl::string_view model) {
  if (model_ready_->Has(OfModel(model))) return;
  model_ready_->Add(OfModel(model)).Set(0);
}

void Metrics::ModelWithdrawn(absl::string_view model) {
  model_ready_->Remove(&model_ready_->Add(OfModel(model)));
  model_load_duration_->Remove(&model_load_duration_->Add(OfModel(model)));
  for (const WeightFormat format : kPackedFormats) {
    prometheus::Labels labels = OfModel(model);
    labels["weight_format"] = std::string(WeightFormatName(format));
    // Add returns what there is.
    model_weights_bytes_->Remove(&model_weights_bytes_->Add(labels));
  }
}

Metrics::ModelSeries Metrics::SeriesOf(absl::string_view model,
                                       absl::Span<const LayerCost> layers) {
  const auto found = models_.find(model);
  if (found != models_.end()) return found->second;
  int64_t num_experts = 0;
  for (const LayerCost& layer : layers) num_experts += layer.num_experts;
  ModelSeries series{
      .detail = detail_,
      .expert_seconds = &expert_seconds_->Add(OfModel(model)),
      .expert_bytes = &expert_bytes_->Add(OfModel(model)),
      .expert_flops = &expert_flops_->Add(OfModel(model)),
      .roofline_seconds = &roofline_seconds_->Add(OfModel(model))};
  if (detail_ == ExpertMetrics::kAuto) {
    series.detail = expert_series_ + num_experts <= kMaxExpertSeries
                        ? ExpertMetrics::kFull
                        : ExpertMetrics::kLayer;
  }
  if (series.detail == ExpertMetrics::kFull) expert_series_ += num_experts;
  models_.emplace(model, series);
  return series;
}

ModelMetrics Metrics::AddModel(absl::string_view model,
                               absl::Span<const LayerCost> layers) {
  absl::MutexLock lock(&mutex_);
  const ModelSeries series = SeriesOf(model, layers);
  ModelMetrics metrics{.detail = series.detail};
  for (const LayerCost& cost : layers) {
    auto layer = std::make_unique<LayerMetrics>();
    layer->cost_ = cost;
    layer->rates_ = rates_;
    layer->expert_seconds_ = series.expert_seconds;
    layer->expert_bytes_ = series.expert_bytes;
    layer->expert_flops_ = series.expert_flops;
    layer->roofline_seconds_ = series.roofline_seconds;
    prometheus::Labels labels = OfModel(model);
    labels["layer"] = absl::StrCat(cost.layer);
    if (series.detail != ExpertMetrics::kOff) {
      layer->tokens_ = &layer_tokens_->Add(labels);
      layer->seconds_ = &layer_seconds_->Add(labels);
      if (cost.num_experts > 0) {
        layer->balancedness_ = &balancedness_->Add(labels);
        layer->balancedness_->Set(1);
        layer->recent_.resize(static_cast<size_t>(cost.num_experts));
      }
    }
    if (series.detail == ExpertMetrics::kFull) {
      for (int64_t e = 0; e < cost.num_experts; ++e) {
        labels["expert"] = absl::StrCat(e);
        layer->expert_tokens_.push_back(&expert_tokens_->Add(labels));
      }
    }
    metrics.layers.push_back(std::move(layer));
  }
  return metrics;
}

void Metrics::ModelReady(absl::string_view model, const WeightsBytes& weights,
                         double load_seconds) {
  for (const WeightFormat format : kPackedFormats) {
    prometheus::Labels labels = OfModel(model);
    labels["weight_format"] = std::string(WeightFormatName(format));
    // A format of before goes to 0; one that never was has no series.
    if (weights[format] == 0 && !model_weights_bytes_->Has(labels)) continue;
    model_weights_bytes_->Add(labels).Set(static_cast<double>(weights[format]));
  }
  model_load_duration_->Add(OfModel(model)).Set(load_seconds);
  model_ready_->Add(OfModel(model)).Set(1);
}

void Metrics::RequestDone(Method method, absl::StatusCode code, double seconds,
                          int64_t sent_bytes) {
  const auto m = static_cast<size_t>(method);
  const auto c = static_cast<size_t>(code);
  requests_[m][c < requests_[m].size() ? c : 2 /* UNKNOWN */]->Increment();
  request_duration_[m]->Observe(seconds);
  sent_bytes_[m]->Increment(static_cast<double>(sent_bytes));
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
