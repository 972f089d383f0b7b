#include "server/metrics/transport_metrics.h"

namespace moe {

TransportMetrics::TransportMetrics(prometheus::Registry& registry)
    : refused_connections_(
          MakeCounter(registry, "moe_refused_connections_total",
                      "Connections refused because there were too many.")),
      stalled_calls_(MakeCounter(
          registry, "moe_stalled_calls_total",
          "Calls ended because their peer did not take an answer.")),
      tls_expiry_(MakeGauges(
          registry, "moe_tls_certificate_expiry_timestamp_seconds",
          "When the certificate in use expires, in seconds since 1970.")) {
  CounterFamily* const reloads =
      MakeCounters(registry, "moe_tls_reloads_total",
                   "Changes of the certificate files: taken, or no good and "
                   "the old ones kept.");
  tls_reloads_ok_ = &reloads->Add({{"result", "ok"}});
  tls_reloads_failed_ = &reloads->Add({{"result", "failed"}});
}

}  // namespace moe
