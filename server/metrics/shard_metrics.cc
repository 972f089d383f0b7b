#include "server/metrics/shard_metrics.h"

namespace moe {

ShardFamilies::ShardFamilies(prometheus::Registry& registry)
    : up_(MakeGauges(
          registry, "moe_shard_up",
          "1 = a replica of the shard answers and holds what it should.")),
      in_flight_rows_(MakeGauges(registry, "moe_shard_in_flight_rows",
                                 "Rows sent to a shard and not answered.")),
      rows_(MakeCounters(registry, "moe_shard_rows_total",
                         "Rows that a shard has answered.")),
      bytes_(MakeCounters(
          registry, "moe_shard_bytes_total",
          "Bytes of messages between front and shard, by direction.")),
      duration_(MakeHistograms(registry, "moe_shard_request_duration_seconds",
                               "Time of a call to a shard that was answered.")),
      retries_(MakeCounters(
          registry, "moe_shard_retries_total",
          "Calls to a shard that were made again after a failure.")),
      hedges_(MakeCounters(registry, "moe_shard_hedges_total",
                           "Calls to a shard that were made again since the "
                           "first took too long.")),
      failures_(MakeCounters(registry, "moe_shard_failures_total",
                             "Calls to a shard that failed, by status code; a "
                             "retry may have helped.")),
      slowest_seconds_(
          MakeCounters(registry, "moe_shard_slowest_seconds_total",
                       "Time of the slowest shard of each batch, summed up.")),
      mean_seconds_(
          MakeCounters(registry, "moe_shard_mean_seconds_total",
                       "Mean time of the shards of each batch, summed up.")) {}

ShardMetrics ShardFamilies::Add(const std::string& name) {
  const prometheus::Labels labels = {{"shard", name}};
  const auto with = [&](const char* label, const std::string& value) {
    prometheus::Labels more = labels;
    more[label] = value;
    return more;
  };
  ShardMetrics metrics{
      .up = &up_->Add(labels),
      .in_flight_rows = &in_flight_rows_->Add(labels),
      .rows = &rows_->Add(labels),
      .sent_bytes = &bytes_->Add(with("direction", "sent")),
      .received_bytes = &bytes_->Add(with("direction", "received")),
      .duration = &duration_->Add(labels, SecondsBuckets()),
      .retries = &retries_->Add(labels),
      .hedges = &hedges_->Add(labels)};
  for (size_t code = 0; code < kNumCodes; ++code) {
    metrics.failures[code] = &failures_->Add(
        with("code", CodeName(static_cast<absl::StatusCode>(code))));
  }
  // There from the first shard on.
  slowest_seconds_->Add({});
  mean_seconds_->Add({});
  return metrics;
}

void ShardFamilies::Done(double slowest_seconds, double mean_seconds) {
  // Add returns what there is.
  slowest_seconds_->Add({}).Increment(slowest_seconds);
  mean_seconds_->Add({}).Increment(mean_seconds);
}

}  // namespace moe
