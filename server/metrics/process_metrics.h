// What Prometheus' own client libraries tell of every process: CPU time,
// memory, files, start. Under the names that they use, so that dashboards for
// any program fit this one.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace moe {

// Reads /proc at each scrape. Thread-safe.
class ProcessMetrics final : public prometheus::Collectable {
 public:
  // root: prefixed to /proc, for tests.
  explicit ProcessMetrics(std::string root = "") : root_(std::move(root)) {}

  // A number that can't be read is left out.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string root_;
};

// Anonymous memory of this process in huge pages; 0 if that can't be read.
// Cost: walks the page tables of the process, so not for every scrape.
int64_t HugePagesBytes();

}  // namespace moe
