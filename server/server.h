// A server, from its options to its end.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experts/base/cpu.h"
#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "grpcpp/server.h"
#include "server/common/file_watcher.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"
#include "server/health_report.h"
#include "server/metrics/metrics.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/models/model_manager.h"
#include "server/moe_v1/moe_service.h"
#include "server/open_inference/inference_service.h"
#include "server/placement/placement.h"
#include "server/rpc/service_context.h"
#include "server/server_options.h"
#include "server/shards/shard_fleet.h"
#include "server/shards/shard_service.h"
#include "server/standard/health_service.h"
#include "server/standard/reflection_service.h"
#include "server/transport/listener.h"
#include "server/transport/token_file.h"

namespace moe {

// Thread-safety: thread-compatible; the RPCs that it serves are concurrent.
class Server {
 public:
  // Listens, then loads the models, then reports healthy. Until it returns,
  // health is NOT_SERVING and requests get FAILED_PRECONDITION.
  //
  // Errors: those of ServerOptions::Validate; UNAVAILABLE if an address can't
  // be bound; of each model, naming it.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options);
  ~Server();

  // As bound: "HOST:PORT", or "unix:PATH".
  const std::string& grpc_address() const { return listener_->address(); }
  // "HOST:PORT" as bound, or "none".
  std::string metrics_address() const {
    return metrics_endpoint_ == nullptr ? "none" : metrics_endpoint_->address();
  }

  // Loads models again whose files have changed; see ModelManager.
  void LookForChangedModels() { models_.LookForChanges(); }
  // Reads certificates, tokens and the placement again that have changed, as
  // the server does by itself ten times a second. Returns when that is done.
  void LookForChangedFiles() { file_watcher_.Look(); }

  // Stops in order: reports NOT_SERVING, waits drain_delay, turns new work
  // away, waits up to drain_timeout for what was accepted, closes.
  void Drain();

 private:
  explicit Server(const ServerOptions& options);
  void LogSetUp() const;
  void Measure();
  absl::Status Listen();
  absl::Status StartMetrics();
  absl::Status OpenShards();
  absl::Status OpenTokens();
  absl::Status StartGrpc();
  void SetServing(bool serving);
  // Tells the health of each model of a front by whether its shards are up.
  // Nothing elsewhere.
  void ReportModels();
  // What this server holds of a model.
  ModelPart PartOf(const std::string& model);

  // What is served over gRPC: built when tokens and fleet are open.
  struct Services {
    explicit Services(Server* server);

    ServiceContext context;
    MoeServiceImpl moe;
    ExpertShardServiceImpl shard;  // offered by shards only
    InferenceServiceImpl inference;
    HealthService health;
    ReflectionService reflection;
  };

  const ServerOptions options_;
  const CpuLimits cpu_limits_;
  const int64_t memory_limit_;
  Executor executor_;
  const Kernels& kernels_;
  Metrics metrics_;
  // A front has a fleet; a shard that a placement file describes, that file.
  std::unique_ptr<ShardFleet> fleet_;
  std::optional<Placement> placement_;
  ModelRegistry registry_;
  Engine engine_;
  ModelManager models_;
  std::unique_ptr<TokenFile> tokens_;        // null: none needed
  std::unique_ptr<TokenFile> admin_tokens_;  // likewise
  FileWatcher file_watcher_;                 // after all that it reads again
  std::unique_ptr<Services> services_;
  std::unique_ptr<MetricsEndpoint> metrics_endpoint_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::optional<HealthReport> health_;
  std::unique_ptr<Listener> listener_;  // last: stops first
};

}  // namespace moe
