#include "server/rpc/service_context.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "grpc/support/time.h"

namespace moe {
namespace {

// A response may take that long to be sent once half of the memory for requests
// and responses is taken.
constexpr absl::Duration kSendTimeoutUnderPressure = absl::Seconds(10);

struct UnrefCall {
  void operator()(grpc_call* call) const { grpc_call_unref(call); }
};

}  // namespace

ServiceContext::ServiceContext(ServiceOptions options,
                               const ModelRegistry* registry, Engine* engine,
                               Metrics* metrics)
    : options_(std::move(options)),
      access_(options_.access),
      registry_(*registry),
      engine_(*engine),
      metrics_(*metrics),
      send_watch_({.timeout = options_.limits.send_timeout,
                   .timeout_under_pressure = kSendTimeoutUnderPressure,
                   .under_pressure =
                       [engine] {
                         return engine->bytes() >
                                engine->options().max_queue_bytes / 2;
                       },
                   .on_stalled = [metrics] { metrics->CallStalled(); }}) {}

SteadyTime ServiceContext::DeadlineOf(
    const grpc::CallbackServerContext& context) {
  // Not deadline(): that is in nanoseconds since 1970, and the longest that a
  // caller may ask for, 292 years from now, has overflown there to long ago.
  const gpr_timespec deadline = context.raw_deadline();
  const gpr_timespec left =
      gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return After(
      SteadyClock::Real().Now(),
      std::chrono::duration<double>(gpr_timespec_to_micros(left) * 1e-6));
}

SendWatch::Send ServiceContext::BeginSend(grpc_call* call) {
  grpc_call_ref(call);
  return send_watch_.Begin(
      [held = std::unique_ptr<grpc_call, UnrefCall>(call)] {
        grpc_call_cancel(held.get(), /*reserved=*/nullptr);
      });
}

}  // namespace moe
