// What is counted about connections and certificates.

#pragma once

#include "absl/time/time.h"
#include "server/metrics/metric_families.h"

namespace moe {

// Thread-safe.
class TransportMetrics {
 public:
  explicit TransportMetrics(prometheus::Registry& registry);

  void ConnectionRefused() { refused_connections_->Increment(); }
  void CallStalled() { stalled_calls_->Increment(); }
  void TlsReloaded(bool ok) {
    (ok ? tls_reloads_ok_ : tls_reloads_failed_)->Increment();
  }
  // There is no such metric without TLS.
  void SetTlsExpiry(absl::Time expiry) {
    tls_expiry_->Add({}).Set(static_cast<double>(absl::ToUnixSeconds(expiry)));
  }

 private:
  prometheus::Counter* const refused_connections_;
  prometheus::Counter* const stalled_calls_;
  GaugeFamily* const tls_expiry_;
  prometheus::Counter* tls_reloads_ok_;
  prometheus::Counter* tls_reloads_failed_;
};

}  // namespace moe
