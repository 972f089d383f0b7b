// What is told about the server as a whole and the machine that it has.

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "experts/kernels/machine_rates.h"
#include "server/metrics/metric_families.h"

namespace moe {

// Thread-safe.
class SystemMetrics {
 public:
  // isa: of the kernels in use.
  SystemMetrics(prometheus::Registry& registry, absl::string_view isa);

  // Whether health says SERVING.
  void SetServing(bool serving) { serving_->Set(serving ? 1 : 0); }
  void SetThreads(int compute_threads, double quota_cpus);
  void SetMemoryLimit(int64_t bytes) {
    memory_limit_->Set(static_cast<double>(bytes));
  }
  void SetHugePages(int64_t bytes) {
    huge_pages_->Set(static_cast<double>(bytes));
  }
  void SetMachine(const MachineRates& rates);

 private:
  prometheus::Gauge* const serving_;
  prometheus::Gauge* const threads_;
  prometheus::Gauge* const quota_;
  prometheus::Gauge* const memory_limit_;
  prometheus::Gauge* const huge_pages_;
  prometheus::Gauge* const read_rate_;
  prometheus::Gauge* const flop_rate_;
};

}  // namespace moe
