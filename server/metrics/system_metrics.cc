#include "server/metrics/system_metrics.h"

#include <string>

#include "experts/matmul_onednn.h"
#include "server/common/version.h"

namespace moe {

SystemMetrics::SystemMetrics(prometheus::Registry& registry,
                             absl::string_view isa)
    : serving_(MakeGauge(registry, "moe_serving",
                         "1 = health says SERVING, 0 = loading or draining.")),
      threads_(
          MakeGauge(registry, "moe_compute_threads", "Threads that compute.")),
      quota_(MakeGauge(registry, "moe_cgroup_quota_cpus",
                       "CPU quota of the cgroup in CPUs, 0 if there is none.")),
      memory_limit_(MakeGauge(
          registry, "moe_memory_limit_bytes",
          "Memory that the process may have: the limit of its cgroup, or all "
          "that the machine has.")),
      huge_pages_(MakeGauge(
          registry, "moe_huge_pages_bytes",
          "Memory in huge pages, when the last model had been loaded.")),
      read_rate_(MakeGauge(
          registry, "moe_machine_read_bytes_per_second",
          "Memory bandwidth, measured at the start; 0 = it was not.")),
      flop_rate_(MakeGauge(registry, "moe_machine_flops_per_second",
                           "Floating point operations per second at most, "
                           "measured at the start; 0 = it was not.")) {
  MakeGauges(registry, "moe_build_info", "Always 1; the labels say what runs.")
      ->Add({{"version", kVersion},
             {"commit", kCommit},
             {"isa", std::string(isa)},
             {"onednn", OneDnnVersion()}})
      .Set(1);
}

void SystemMetrics::SetThreads(int compute_threads, double quota_cpus) {
  threads_->Set(compute_threads);
  quota_->Set(quota_cpus);
}

void SystemMetrics::SetMachine(const MachineRates& rates) {
  read_rate_->Set(1e9 * rates.read_gb_per_s);
  flop_rate_->Set(1e9 * rates.peak_gflop_per_s);
}

}  // namespace moe
