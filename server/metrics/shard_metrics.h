// What a front counts about its shards.

#pragma once

#include <array>
#include <string>

#include "server/metrics/metric_families.h"

namespace moe {

// What a front counts about one shard. Thread-safe.
struct ShardMetrics {
  prometheus::Gauge* up = nullptr;
  prometheus::Gauge* in_flight_rows = nullptr;
  prometheus::Counter* rows = nullptr;
  prometheus::Counter* sent_bytes = nullptr;
  prometheus::Counter* received_bytes = nullptr;
  prometheus::Histogram* duration = nullptr;
  prometheus::Counter* retries = nullptr;
  prometheus::Counter* hedges = nullptr;
  // By CodeIndex; OK is never counted.
  std::array<prometheus::Counter*, kNumCodes> failures{};
};

// The families of metrics that have a label `shard`. Thread-safe.
class ShardFamilies {
 public:
  explicit ShardFamilies(prometheus::Registry& registry);

  // The counters of a shard, created at 0; one that had the name before goes
  // on.
  ShardMetrics Add(const std::string& name);
  // How long the shards of one batch took: the slowest, and the mean.
  void Done(double slowest_seconds, double mean_seconds);

 private:
  GaugeFamily* const up_;
  GaugeFamily* const in_flight_rows_;
  CounterFamily* const rows_;
  CounterFamily* const bytes_;
  HistogramFamily* const duration_;
  CounterFamily* const retries_;
  CounterFamily* const hedges_;
  CounterFamily* const failures_;
  CounterFamily* const slowest_seconds_;
  CounterFamily* const mean_seconds_;
};

}  // namespace moe
