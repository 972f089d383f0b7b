#include "server/metrics/request_metrics.h"

namespace moe {
namespace {

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

}  // namespace

RequestMetrics::RequestMetrics(prometheus::Registry& registry) {
  CounterFamily* const requests =
      MakeCounters(registry, "moe_requests_total",
                   "Requests answered, by method and status code.");
  HistogramFamily* const duration =
      MakeHistograms(registry, "moe_request_duration_seconds",
                     "Time from receiving a request to its answer.");
  CounterFamily* const received =
      MakeCounters(registry, "moe_received_bytes_total",
                   "Bytes of requests that carry tensors, as protocol "
                   "buffers.");
  CounterFamily* const sent =
      MakeCounters(registry, "moe_sent_bytes_total",
                   "Bytes of answers that carry tensors, as protocol buffers.");
  for (size_t m = 0; m < series_.size(); ++m) {
    const prometheus::Labels labels = {{"method", kMethodNames[m]}};
    MethodSeries& series = series_[m];
    for (size_t code = 0; code < kNumCodes; ++code) {
      prometheus::Labels with_code = labels;
      with_code["code"] = CodeName(static_cast<absl::StatusCode>(code));
      series.requests[code] = &requests->Add(with_code);
    }
    series.duration = &duration->Add(labels, SecondsBuckets());
    series.received_bytes = &received->Add(labels);
    series.sent_bytes = &sent->Add(labels);
  }
  CounterFamily* const rejected =
      MakeCounters(registry, "moe_rejected_requests_total",
                   "Requests turned away before compute, by reason.");
  for (size_t reason = 0; reason < rejected_.size(); ++reason) {
    rejected_[reason] = &rejected->Add({{"reason", kRejectionNames[reason]}});
  }
  in_flight_ = MakeGauge(registry, "moe_requests_in_flight",
                         "Requests received and not yet answered.");
}

void RequestMetrics::Done(Method method, absl::StatusCode code, double seconds,
                          int64_t sent_bytes) {
  const MethodSeries& series = series_[static_cast<size_t>(method)];
  series.requests[CodeIndex(code)]->Increment();
  series.duration->Observe(seconds);
  series.sent_bytes->Increment(static_cast<double>(sent_bytes));
  in_flight_->Decrement();
}

}  // namespace moe
