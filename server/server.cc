#include "server/server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/status_macros.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/machine_rates.h"
#include "experts/matmul_onednn.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "server/common/logging.h"
#include "server/common/version.h"
#include "server/metrics/process_metrics.h"
#include "server/models/available_memory.h"
#include "server/transport/short_slices.h"
#include "server/transport/tls_credentials.h"

namespace moe {
namespace {

// The services that this project defines.
std::vector<std::string> OwnServices(const ServerOptions& options) {
  std::vector<std::string> names = {"moe.v1.MoeService",
                                    "inference.GRPCInferenceService"};
  if (options.shard()) names.push_back("moe.shards.ExpertShardService");
  return names;
}

// What health answers for; "" is the whole server.
std::vector<std::string> HealthNames(const ServerOptions& options) {
  std::vector<std::string> names = OwnServices(options);
  names.push_back("");
  return names;
}

// What reflection lists.
std::vector<std::string> AllServices(const ServerOptions& options) {
  std::vector<std::string> names = OwnServices(options);
  names.push_back("grpc.health.v1.Health");
  names.push_back("grpc.reflection.v1alpha.ServerReflection");
  return names;
}

// gRPC answers CANCELLED to calls that arrive while it shuts down. Callers
// whose last response has just left get this long to call again and be told
// UNAVAILABLE, which sends them elsewhere.
constexpr absl::Duration kTurnAwayTime = absl::Milliseconds(100);

// Whether only this host can reach an address.
bool IsLocal(absl::string_view address) {
  return absl::StartsWith(address, "unix:") ||
         absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:");
}

// As many connections as asked for, or as the process may have files beside
// what it needs itself. Raises the limit on files as far as it goes.
int MaxConnections(int wanted) {
  constexpr rlim_t kOwnFiles = 256;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  const rlim_t left = files.rlim_cur > 2 * kOwnFiles
                          ? files.rlim_cur - kOwnFiles
                          : files.rlim_cur / 2;
  return static_cast<int>(std::min<rlim_t>(left, static_cast<rlim_t>(wanted)));
}

// What clients may do to the transport.
void SetLimits(const ServerOptions& options, grpc::ServerBuilder& builder) {
  constexpr int kSecond = 1000;  // milliseconds
  const auto max_message = static_cast<int>(options.max_message_bytes);
  builder.SetMaxReceiveMessageSize(max_message);
  builder.SetMaxSendMessageSize(max_message);
  // Tensors hardly shrink, and what a small message may grow into is not
  // bounded by gRPC.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // What gRPC itself holds: as much again as the engine admits.
  grpc::ResourceQuota quota("moe-server");
  quota.Resize(
      static_cast<size_t>(options.max_queue_bytes + options.max_message_bytes));
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             options.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 * 1024);
  // Whoever connects has to begin to speak.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             10 * kSecond);
  // Finds peers that are gone without a word.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Clients may do the same, but not more often than that; fronts notice
  // sooner that a shard is gone.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      options.shard() ? kSecond / 2 : 10 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
}

// How the shards of a front are, for the services. fleet: null = no front
ShardStates ShardStatesOf(const ShardFleet* fleet) {
  if (fleet == nullptr) return nullptr;
  return [fleet](const std::string& model) {
    std::vector<ShardState> states;
    for (const auto& shard : fleet->ShardsOfModel(model)) {
      states.push_back({.name = shard->name(), .up = shard->up()});
    }
    return states;
  };
}

int ComputeThreads(const ServerOptions& options, const CpuLimits& limits) {
  return options.num_compute_threads > 0 ? options.num_compute_threads
                                         : limits.threads();
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options),
      cpu_limits_(DetectCpuLimits()),
      memory_limit_(DetectMemoryLimit()),
      executor_(ComputeThreads(options, cpu_limits_),
                options.numa ? DetectNumaNodes() : NumaNodes{}),
      kernels_(options.deterministic ? DeterministicKernels() : BestKernels()),
      metrics_(options.expert_metrics, kernels_.isa),
      engine_({.batching = {.max_batch_tokens = options.max_batch_tokens,
                            .max_queue_delay = absl::ToChronoNanoseconds(
                                options.max_queue_delay),
                            .max_queue_tokens = options.max_queue_tokens},
               .max_queue_bytes = options.max_queue_bytes,
               .batches_in_flight =
                   options.front() ? options.max_batches_in_flight : 1},
              &executor_, kernels_, &metrics_),
      models_(
          {.models = options.models,
           .repository = options.model_repository,
           .demo = options.demo,
           .load = {.weight_format = options.weight_format,
                    .engine = options.engine,
                    .layers = options.layers},
           .part = [this](const std::string& model) { return PartOf(model); },
           .await_rest =
               [this](const std::string& model) {
                 return fleet_ == nullptr ? absl::OkStatus()
                                          : fleet_->WaitUntilUp(model);
               },
           .on_change = [this] { ReportModels(); },
           .expert_metrics = options.expert_metrics,
           .poll = options.repository_poll,
           .available_memory = [] { return AvailableMemory(); }},
          &executor_, &engine_, &registry_, &metrics_) {
  const double quota = cpu_limits_.quota_cpus.value_or(0);
  metrics_.SetThreads(executor_.num_threads(), quota);
  metrics_.SetQueueLimits(options.max_queue_tokens, options.max_queue_bytes);
  metrics_.SetMemoryLimit(memory_limit_);
}

void Server::LogSetUp() const {
  LogInfo(absl::StrFormat(
      "moe-server %s (%s): kernels for %s, oneDNN %s, %d compute threads%s "
      "(affinity %d CPUs, cgroup quota %s)",
      kVersion, kCommit, kernels_.isa, OneDnnVersion(), executor_.num_threads(),
      executor_.node_threads().size() > 1
          ? absl::StrCat(" on NUMA nodes (",
                         absl::StrJoin(executor_.node_threads(), " + "), ")")
          : "",
      cpu_limits_.affinity_cpus,
      cpu_limits_.quota_cpus.has_value()
          ? absl::StrCat(*cpu_limits_.quota_cpus, " CPUs")
          : "none"));
}

Server::~Server() {
  file_watcher_.Stop();
  if (listener_ != nullptr) listener_->Stop();
  if (fleet_ != nullptr) fleet_->Stop();
  models_.BeginDrain();
  if (grpc_server_ != nullptr) {
    grpc_server_->Shutdown(absl::ToChronoTime(absl::Now()));
  }
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options) {
  MOE_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Server> server(new Server(options));
  MOE_RETURN_IF_ERROR(server->OpenShards());
  // Who calls while they load is told to wait, not that there is none.
  MOE_RETURN_IF_ERROR(server->models_.AnnounceAll());
  MOE_RETURN_IF_ERROR(server->Listen());
  if (options.measure_machine) server->Measure();
  MOE_RETURN_IF_ERROR(server->models_.LoadAll());
  server->LogSetUp();
  server->SetServing(true);
  return server;
}

absl::Status Server::OpenShards() {
  if (options_.front()) {
    MOE_ASSIGN_OR_RETURN(Caller caller,
                         Caller::Make(options_.shard_caller, "--shard_"));
    MOE_ASSIGN_OR_RETURN(
        fleet_,
        ShardFleet::Open(
            {.placement_file = options_.shards_file,
             .client = {.caller = std::move(caller),
                        .keepalive = options_.shard_keepalive,
                        .max_message_bytes = options_.max_message_bytes},
             .wire_dtype = options_.shard_wire_dtype,
             .timeout = options_.shard_timeout,
             .hedge_percentile = options_.shard_hedge_percentile},
            &file_watcher_, &metrics_));
  } else if (!options_.shards_file.empty()) {
    MOE_ASSIGN_OR_RETURN(placement_, Placement::ReadFile(options_.shards_file));
    if (!placement_->Find(options_.shard_name).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--shard_name: want a shard of --shards, got \"",
                       options_.shard_name, "\""));
    }
  }
  return absl::OkStatus();
}

ModelPart Server::PartOf(const std::string& model) {
  ModelPart part;
  if (placement_.has_value()) {
    part.held_experts = [this, model](const LayerSpec& layer) {
      return placement_->ExpertsOf(*placement_->Find(options_.shard_name),
                                   model, layer.index,
                                   static_cast<int>(layer.experts.num_experts));
    };
  } else if (options_.shard() || options_.front()) {
    part.held_experts = [this](const LayerSpec& layer) {
      return options_.experts.value_or(IndexSet())
          .Below(static_cast<int>(layer.experts.num_experts))
          .Values();
    };
  }
  if (fleet_ != nullptr) {
    part.leave_out_missing = options_.leave_out_missing;
    part.connect = [this, model](SpreadExperts experts) {
      return fleet_->Connect(model, std::move(experts));
    };
  }
  return part;
}

void Server::Measure() {
  // More than the caches hold, and little of what there is.
  const int64_t cache = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
  const int64_t bytes =
      std::min(std::clamp(4 * cache, int64_t{64} << 20, int64_t{512} << 20),
               memory_limit_ / 8);
  AlignedBuffer<uint8_t> memory(bytes);
  // Written by those who read it, so that it is near to them.
  const int64_t part = bytes / executor_.num_threads();
  executor_.ParallelFor(executor_.num_threads(), [&](int64_t i, int) {
    std::fill_n(memory.data() + i * part, part, uint8_t{1});
  });
  const auto shares = SharesOf(
      {memory.data(), static_cast<size_t>(part) *
                          static_cast<size_t>(executor_.num_threads())},
      executor_.num_threads());
  constexpr int kRounds = 16;
  const MachineRates rates = MeasureMachine(
      kernels_, shares,
      [this](auto ends, auto fn) { executor_.ParallelFor(ends, fn); }, kRounds);
  metrics_.SetMachine(rates);
  LogInfo(
      absl::StrFormat("this machine reads %.1f GB/s and computes %.0f "
                      "GFLOP/s with these threads",
                      rates.read_gb_per_s, rates.peak_gflop_per_s));
}

absl::Status Server::OpenTokens() {
  if (!options_.auth_token_file.empty()) {
    MOE_ASSIGN_OR_RETURN(
        tokens_, TokenFile::Open(options_.auth_token_file, "--auth_token_file",
                                 &file_watcher_));
  }
  if (!options_.admin_token_file.empty()) {
    MOE_ASSIGN_OR_RETURN(admin_tokens_,
                         TokenFile::Open(options_.admin_token_file,
                                         "--admin_token_file", &file_watcher_));
  }
  return absl::OkStatus();
}

absl::Status Server::Listen() {
  MOE_RETURN_IF_ERROR(OpenTokens());
  MOE_RETURN_IF_ERROR(StartMetrics());
  if (options_.tls_cert_file.empty() && !IsLocal(options_.listen_address)) {
    LogWarning(absl::StrCat(
        "--listen_address: ", options_.listen_address,
        " can be reached from other hosts without TLS: anyone on the way can "
        "read and change what is sent; see --tls_cert_file"));
  }
  const int max_connections = MaxConnections(options_.max_connections);
  if (max_connections < options_.max_connections) {
    LogWarning(absl::StrCat("--max_connections: ", max_connections,
                            ", because of the limit on open files"));
  }
  MOE_ASSIGN_OR_RETURN(
      listener_,
      Listener::Bind({.address = options_.listen_address,
                      .max_connections = max_connections,
                      .on_refused = [this] { metrics_.ConnectionRefused(); }}));
  return StartGrpc();
}

absl::Status Server::StartMetrics() {
  if (options_.metrics_address.empty()) return absl::OkStatus();
  std::function<bool(const std::string&)> password;
  if (options_.auth_metrics) {
    password = [this](const std::string& given) {
      return tokens_->Accepts(given);
    };
  }
  MOE_ASSIGN_OR_RETURN(
      metrics_endpoint_,
      MetricsEndpoint::Start(options_.metrics_address, metrics_.registry(),
                             std::move(password)));
  return absl::OkStatus();
}

Server::Services::Services(Server* server)
    : context(
          {.limits = {.max_message_bytes = server->options_.max_message_bytes,
                      .max_request_tokens = server->options_.max_request_tokens,
                      .send_timeout = server->options_.send_timeout},
           .access = {.tokens = server->tokens_.get(),
                      .model_control = server->options_.model_control ||
                                       server->admin_tokens_ != nullptr,
                      .admin_tokens = server->admin_tokens_.get()},
           .shards = ShardStatesOf(server->fleet_.get())},
          &server->registry_, &server->engine_, &server->metrics_),
      moe(&context),
      shard(&context),
      inference(&context, &server->models_),
      health(&context),
      reflection(&context, AllServices(server->options_)) {}

absl::Status Server::StartGrpc() {
  services_ = std::make_unique<Services>(this);
  // For the threads that gRPC starts: a refusal, or the reading of a request,
  // is not to wait for experts that compute on all CPUs.
  const ShortSlices short_slices;
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::InsecureServerCredentials();
  if (!options_.tls_cert_file.empty()) {
    MOE_ASSIGN_OR_RETURN(
        credentials,
        MakeTlsCredentials(
            {.cert_file = options_.tls_cert_file,
             .key_file = options_.tls_key_file,
             .client_ca_file = options_.tls_client_ca_file},
            {.on_use =
                 [this](absl::Time expiry) { metrics_.SetTlsExpiry(expiry); },
             .on_reload = [this](bool ok) { metrics_.TlsReloaded(ok); }},
            &file_watcher_));
  }
  grpc::ServerBuilder builder;
  SetLimits(options_, builder);
  builder.RegisterService(&services_->moe);
  builder.RegisterService(&services_->inference);
  builder.RegisterService(&services_->health);
  builder.RegisterService(&services_->reflection);
  if (options_.shard()) builder.RegisterService(&services_->shard);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      credentials);
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr) {
    return absl::InternalError("gRPC does not start");
  }
  health_.emplace(HealthNames(options_), &services_->health);
  if (fleet_ != nullptr) fleet_->OnChange([this] { ReportModels(); });
  file_watcher_.Start();
  listener_->Start(std::move(acceptor));
  return absl::OkStatus();
}

void Server::SetServing(bool serving) {
  services_->context.SetServing(serving);
  health_->SetServing(serving);
  metrics_.SetServing(serving);
}

void Server::ReportModels() {
  if (fleet_ == nullptr) return;
  health_->SetModels([this] {
    HealthReport::Models models;
    for (const auto& served : registry_.List()) {
      const auto shards = fleet_->ShardsOfModel(served->name);
      models[served->name] =
          std::all_of(shards.begin(), shards.end(),
                      [](const auto& shard) { return shard->up(); });
    }
    return models;
  });
}

void Server::Drain() {
  LogInfo("draining: health is NOT_SERVING");
  SetServing(false);
  absl::SleepFor(options_.drain_delay);
  listener_->Stop();
  engine_.BeginDrain();
  models_.BeginDrain();
  services_->context.open_calls().BeginDrain();
  // Callers whose last response has just left may call once more: they are told
  // UNAVAILABLE, where gRPC would cancel them.
  const absl::Time deadline = absl::Now() + options_.drain_timeout;
  const auto wait_until_idle = [&] {
    return services_->context.open_calls().WaitUntilIdle(
        std::max(deadline - absl::Now(), absl::ZeroDuration()));
  };
  bool idle = wait_until_idle();
  absl::SleepFor(std::min(kTurnAwayTime, deadline - absl::Now()));
  idle = idle && wait_until_idle();
  if (!idle) {
    LogWarning("--drain_timeout is over: ending what is not answered");
  }
  // What is left are health watches, which never end by themselves.
  grpc_server_->Shutdown(absl::ToChronoTime(absl::Now()));
  LogInfo("drained");
}

}  // namespace moe
