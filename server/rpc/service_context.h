// What the gRPC services of a server have in common. It knows none of them.

#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "grpc/grpc.h"
#include "grpcpp/server_context.h"
#include "server/common/steady_time.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"
#include "server/metrics/metrics.h"
#include "server/rpc/access_control.h"
#include "server/rpc/open_calls.h"
#include "server/rpc/service_limits.h"
#include "server/transport/send_watch.h"

namespace moe {

// A shard that has experts of a model.
struct ShardState {
  std::string name;
  bool up = false;
};
// The shards of a model, by its name.
using ShardStates = std::function<std::vector<ShardState>(const std::string&)>;

struct ServiceOptions {
  ServiceLimits limits{};
  AccessOptions access{};
  // The shards of a front, to be shown; null: this server is none.
  ShardStates shards{};
};

// Thread-safe.
class ServiceContext {
 public:
  // All must outlive the object.
  ServiceContext(ServiceOptions options, const ModelRegistry* registry,
                 Engine* engine, Metrics* metrics);

  const ServiceLimits& limits() const { return options_.limits; }
  const AccessControl& access() const { return access_; }
  const ModelRegistry& registry() const { return registry_; }
  Engine& engine() const { return engine_; }
  Metrics& metrics() const { return metrics_; }
  OpenCalls& open_calls() { return open_calls_; }
  // The shards that have experts of a model; none where this server is no
  // front.
  std::vector<ShardState> ShardsOf(const std::string& model) const {
    return options_.shards == nullptr ? std::vector<ShardState>()
                                      : options_.shards(model);
  }

  // Whether the server says that it is healthy.
  void SetServing(bool serving) { serving_.store(serving); }
  bool serving() const { return serving_.load(); }

  // The deadline of a call.
  static SteadyTime DeadlineOf(const grpc::CallbackServerContext& context);
  // The call begins to send a message, and has sent it: it is ended if that
  // takes too long. EndSend once for each BeginSend, while the call lives.
  SendWatch::Send BeginSend(grpc_call* call);
  void EndSend(SendWatch::Send send) { send_watch_.End(send); }

 private:
  const ServiceOptions options_;
  const AccessControl access_;
  const ModelRegistry& registry_;
  Engine& engine_;
  Metrics& metrics_;
  std::atomic<bool> serving_ = false;
  SendWatch send_watch_;
  OpenCalls open_calls_;
};

}  // namespace moe
