// Counts one request, from its arrival to its response.

#pragma once

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/common/steady_time.h"
#include "server/metrics/metrics.h"

namespace moe {

// Thread-compatible.
class RequestTimer {
 public:
  RequestTimer(Method method, Metrics& metrics)
      : method_(method), metrics_(metrics) {
    metrics_.RequestStarted();
  }
  // Messages with tensors only: the others are small.
  void Received(const grpc::ByteBuffer& message) {
    metrics_.Received(method_, static_cast<int64_t>(message.Length()));
  }
  // Once. response: null if it has no tensors
  void Done(absl::StatusCode code, const grpc::ByteBuffer* response) {
    const auto now = SteadyClock::Real().Now();
    metrics_.RequestDone(
        method_, code, std::chrono::duration<double>(now - start_).count(),
        response == nullptr ? 0 : static_cast<int64_t>(response->Length()));
  }

 private:
  const Method method_;
  Metrics& metrics_;
  const SteadyTime start_ = SteadyClock::Real().Now();
};

}  // namespace moe
