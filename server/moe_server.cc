// moe-server: flags in, a Server, signals, and the exit code.

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/symbolize.h"
#include "absl/flags/flag.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "experts/base/status_macros.h"
#include "server/common/flags.h"
#include "server/common/index_set.h"
#include "server/common/logging.h"
#include "server/common/standard_streams.h"
#include "server/server.h"
#include "server/server_options.h"
#include "server/service_manager.h"

namespace moe {
namespace {

// The names that --missing_experts knows.
constexpr char kFail[] = "fail";
constexpr char kRenormalize[] = "renormalize";

std::string MissingExpertsName(bool leave_out) {
  return leave_out ? kRenormalize : kFail;
}

std::string WireDTypeName(v1::DType dtype) {
  return dtype == v1::BF16 ? "bf16" : "f32";
}

}  // namespace
}  // namespace moe

// What ServerOptions holds by itself is the default of each flag.
using moe::ServerOptions;

ABSL_FLAG(std::vector<std::string>, model, {},
          "Models to serve, as NAME=DIR; repeatable, or separated by commas. "
          "DIR is a Hugging Face checkpoint folder.");
ABSL_FLAG(std::string, model_repository, ServerOptions{}.model_repository,
          "Folder whose subfolders are models, named as they are.");
ABSL_FLAG(bool, demo, ServerOptions{}.demo,
          "Serve a small built-in model named demo.");
ABSL_FLAG(std::string, listen_address, ServerOptions{}.listen_address,
          "HOST:PORT or unix:PATH for gRPC; port 0 picks a free one.");
ABSL_FLAG(std::string, metrics_address, ServerOptions{}.metrics_address,
          "HOST:PORT for Prometheus metrics over HTTP; port 0 picks a free "
          "one, empty means none.");
ABSL_FLAG(std::string, weight_format,
          std::string(moe::WeightFormatName(ServerOptions{}.weight_format)),
          "How weights lie in memory: auto (the checkpoint's precision), f32, "
          "bf16, f16, fp8, mxfp4, int8 or int4.");
ABSL_FLAG(
    std::string, engine,
    std::string(moe::ExpertEngineName(ServerOptions{}.engine)),
    "What computes the experts of checkpoints: simd (packed weights, same "
    "bytes for a token in any batch) or onednn (float32 weights).");
ABSL_FLAG(
    bool, deterministic, ServerOptions{}.deterministic,
    "Keep to kernels whose results are the same bytes on every CPU with "
    "FMA: no VNNI, no AMX. Results are the same bytes in any batch either "
    "way.");
ABSL_FLAG(std::vector<std::string>, layers, {},
          "Layers to serve, as in 0-3,7; empty = all.");
ABSL_FLAG(std::vector<std::string>, experts, {},
          "Experts to hold of every routed layer, as in 0-63,70: this server "
          "is a shard, which runs them for a front. With --shards: those that "
          "the front holds itself.");
ABSL_FLAG(std::string, shards, ServerOptions{}.shards_file,
          "JSON file that says which experts are on which shards: this server "
          "is a front, which calls them. Read again when it changes.");
ABSL_FLAG(std::string, shard_name, ServerOptions{}.shard_name,
          "With --shards: this server is the shard of that name.");
ABSL_FLAG(std::string, shard_wire_dtype,
          moe::WireDTypeName(ServerOptions{}.shard_wire_dtype),
          "How a front sends rows to shards and gets them back: f32 (the same "
          "bytes as one server gives) or bf16 (half the traffic).");
ABSL_FLAG(absl::Duration, shard_timeout, ServerOptions{}.shard_timeout,
          "How long a front waits for a shard, retries included.");
ABSL_FLAG(absl::Duration, shard_keepalive, ServerOptions{}.shard_keepalive,
          "How long a connection to a shard may be silent before a front asks "
          "for a sign of life, and then until it gives it up.");
ABSL_FLAG(double, shard_hedge_percentile,
          ServerOptions{}.shard_hedge_percentile,
          "A call to a shard that takes longer than this percentile of those "
          "before it is made a second time, at another replica; 0 = never.");
ABSL_FLAG(
    std::string, missing_experts,
    moe::MissingExpertsName(ServerOptions{}.leave_out_missing),
    "What a front does with tokens whose experts are on a shard that does "
    "not answer: fail, or renormalize: leave these experts out, scale the "
    "weights of the others, and say so in the answer.");
ABSL_FLAG(std::string, shard_token_file,
          ServerOptions{}.shard_caller.token_file,
          "File whose first line a front sends to shards as bearer token.");
ABSL_FLAG(bool, shard_tls, ServerOptions{}.shard_caller.tls,
          "A front calls its shards over TLS.");
ABSL_FLAG(std::string, shard_tls_ca_file, ServerOptions{}.shard_caller.ca_file,
          "PEM file of the authorities that a front trusts; turns TLS on.");
ABSL_FLAG(std::string, shard_tls_cert_file,
          ServerOptions{}.shard_caller.cert_file,
          "PEM file of the certificate that a front shows to shards.");
ABSL_FLAG(std::string, shard_tls_key_file,
          ServerOptions{}.shard_caller.key_file,
          "PEM file of its private key.");
ABSL_FLAG(std::string, shard_tls_server_name,
          ServerOptions{}.shard_caller.tls_server_name,
          "Name that the shards' certificates are for; empty: that of the "
          "target.");
ABSL_FLAG(std::string, expert_metrics,
          std::string(moe::ExpertMetricsName(ServerOptions{}.expert_metrics)),
          "How much metrics tell about experts: full (tokens of each expert), "
          "layer (of each layer, and how even its experts are), off, or auto "
          "(full, but layer for models that would make more than 10000 "
          "series).");
ABSL_FLAG(bool, measure_machine, ServerOptions{}.measure_machine,
          "Measure memory bandwidth and peak speed when starting, in a tenth "
          "of a second, for the metrics of the roofline.");
ABSL_FLAG(int64_t, max_message_bytes, ServerOptions{}.max_message_bytes,
          "Largest gRPC message either way.");
ABSL_FLAG(int64_t, max_request_tokens, ServerOptions{}.max_request_tokens,
          "Largest batch of one request.");
ABSL_FLAG(int64_t, max_batch_tokens, ServerOptions{}.max_batch_tokens,
          "Tokens that run together at most; larger requests run in parts.");
ABSL_FLAG(int64_t, max_batches_in_flight, ServerOptions{}.max_batches_in_flight,
          "Batches of a front that are on their way at a time: while shards "
          "compute one, the next is gathered and the last one added up.");
ABSL_FLAG(absl::Duration, max_queue_delay, ServerOptions{}.max_queue_delay,
          "How long a batch that is not full may wait for company, while the "
          "engine is busy.");
ABSL_FLAG(int64_t, max_queue_tokens, ServerOptions{}.max_queue_tokens,
          "Tokens that may wait; more are answered RESOURCE_EXHAUSTED.");
ABSL_FLAG(int64_t, max_queue_bytes, ServerOptions{}.max_queue_bytes,
          "Bytes of requests and answers, from admission until sent; more are "
          "answered RESOURCE_EXHAUSTED.");
ABSL_FLAG(absl::Duration, send_timeout, ServerOptions{}.send_timeout,
          "How long an answer may take to be sent; then its call is ended. Ten "
          "seconds at most while half of --max_queue_bytes is taken.");
ABSL_FLAG(int, max_connections, ServerOptions{}.max_connections,
          "Connections beyond it are refused; less if the process may not have "
          "so many files.");
ABSL_FLAG(int, max_concurrent_streams, ServerOptions{}.max_concurrent_streams,
          "Calls that a connection may have in flight.");
ABSL_FLAG(std::string, tls_cert_file, ServerOptions{}.tls_cert_file,
          "PEM file of the server's certificate chain: turns TLS on. Read "
          "again when it changes.");
ABSL_FLAG(std::string, tls_key_file, ServerOptions{}.tls_key_file,
          "PEM file of its private key.");
ABSL_FLAG(std::string, tls_client_ca_file, ServerOptions{}.tls_client_ca_file,
          "PEM file of authorities: clients must show a certificate of one of "
          "them.");
ABSL_FLAG(
    std::string, auth_token_file, ServerOptions{}.auth_token_file,
    "File of tokens, one a line: callers must send one as \"authorization: "
    "Bearer TOKEN\", health checks apart.");
ABSL_FLAG(bool, auth_metrics, ServerOptions{}.auth_metrics,
          "Metrics need a token too, as password of HTTP basic "
          "authentication.");
ABSL_FLAG(bool, model_control, ServerOptions{}.model_control,
          "Let callers load, reload and unload models "
          "(inference.RepositoryModelLoad, RepositoryModelUnload).");
ABSL_FLAG(
    std::string, admin_token_file, ServerOptions{}.admin_token_file,
    "File of tokens, one a line: who sends one as \"authorization: Bearer "
    "TOKEN\" may load, reload and unload models.");
ABSL_FLAG(absl::Duration, repository_poll, ServerOptions{}.repository_poll,
          "How often to look for models that have changed on disk; 0 = on "
          "SIGHUP only.");
ABSL_FLAG(int, num_compute_threads, ServerOptions{}.num_compute_threads,
          "Threads that compute; 0 = what CPU affinity and cgroup quota "
          "allow.");
ABSL_FLAG(bool, numa, ServerOptions{}.numa,
          "On several NUMA nodes: give each a slice of every expert, and "
          "threads bound to it that compute that slice.");
ABSL_FLAG(absl::Duration, drain_delay, ServerOptions{}.drain_delay,
          "After SIGTERM: time between NOT_SERVING and turning work away.");
ABSL_FLAG(absl::Duration, drain_timeout, ServerOptions{}.drain_timeout,
          "After SIGTERM: time that accepted requests may take.");

namespace moe {
namespace {

absl::Status ShardOptionsFromFlags(ServerOptions* options) {
  const std::string experts = absl::StrJoin(absl::GetFlag(FLAGS_experts), ",");
  if (!experts.empty()) {
    MOE_ASSIGN_OR_RETURN(options->experts,
                         IndexSet::Parse("--experts", experts));
  }
  options->shards_file = absl::GetFlag(FLAGS_shards);
  options->shard_name = absl::GetFlag(FLAGS_shard_name);
  const std::string dtype = absl::GetFlag(FLAGS_shard_wire_dtype);
  if (dtype != "f32" && dtype != "bf16") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--shard_wire_dtype: want f32 or bf16, got \"", dtype, "\""));
  }
  options->shard_wire_dtype = dtype == "f32" ? v1::F32 : v1::BF16;
  options->shard_timeout = absl::GetFlag(FLAGS_shard_timeout);
  options->shard_keepalive = absl::GetFlag(FLAGS_shard_keepalive);
  options->shard_hedge_percentile = absl::GetFlag(FLAGS_shard_hedge_percentile);
  const std::string missing = absl::GetFlag(FLAGS_missing_experts);
  if (missing != kFail && missing != kRenormalize) {
    return absl::InvalidArgumentError(absl::StrCat("--missing_experts: want ",
                                                   kFail, " or ", kRenormalize,
                                                   ", got \"", missing, "\""));
  }
  options->leave_out_missing = missing == kRenormalize;
  options->shard_caller = {
      .tls = absl::GetFlag(FLAGS_shard_tls),
      .ca_file = absl::GetFlag(FLAGS_shard_tls_ca_file),
      .cert_file = absl::GetFlag(FLAGS_shard_tls_cert_file),
      .key_file = absl::GetFlag(FLAGS_shard_tls_key_file),
      .tls_server_name = absl::GetFlag(FLAGS_shard_tls_server_name),
      .token_file = absl::GetFlag(FLAGS_shard_token_file)};
  return absl::OkStatus();
}

absl::StatusOr<ServerOptions> OptionsFromFlags() {
  ServerOptions options;
  for (const std::string& text : absl::GetFlag(FLAGS_model)) {
    MOE_ASSIGN_OR_RETURN(ModelSource source, ParseModelSource(text));
    options.models.push_back(std::move(source));
  }
  options.model_repository = absl::GetFlag(FLAGS_model_repository);
  options.demo = absl::GetFlag(FLAGS_demo);
  options.listen_address = absl::GetFlag(FLAGS_listen_address);
  options.metrics_address = absl::GetFlag(FLAGS_metrics_address);
  const auto format = ParseWeightFormat(absl::GetFlag(FLAGS_weight_format));
  if (!format.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--weight_format: ", format.status().message()));
  }
  options.weight_format = *format;
  const auto engine = ParseExpertEngine(absl::GetFlag(FLAGS_engine));
  if (!engine.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine: ", engine.status().message()));
  }
  options.engine = *engine;
  options.deterministic = absl::GetFlag(FLAGS_deterministic);
  MOE_ASSIGN_OR_RETURN(
      options.layers,
      ParseIndexList("--layers",
                     absl::StrJoin(absl::GetFlag(FLAGS_layers), ",")));
  MOE_RETURN_IF_ERROR(ShardOptionsFromFlags(&options));
  const auto detail = ParseExpertMetrics(absl::GetFlag(FLAGS_expert_metrics));
  if (!detail.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--expert_metrics: ", detail.status().message()));
  }
  options.expert_metrics = *detail;
  options.measure_machine = absl::GetFlag(FLAGS_measure_machine);
  options.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes);
  options.max_request_tokens = absl::GetFlag(FLAGS_max_request_tokens);
  options.max_batch_tokens = absl::GetFlag(FLAGS_max_batch_tokens);
  options.max_batches_in_flight = absl::GetFlag(FLAGS_max_batches_in_flight);
  options.max_queue_delay = absl::GetFlag(FLAGS_max_queue_delay);
  options.max_queue_tokens = absl::GetFlag(FLAGS_max_queue_tokens);
  options.max_queue_bytes = absl::GetFlag(FLAGS_max_queue_bytes);
  options.send_timeout = absl::GetFlag(FLAGS_send_timeout);
  options.max_connections = absl::GetFlag(FLAGS_max_connections);
  options.max_concurrent_streams = absl::GetFlag(FLAGS_max_concurrent_streams);
  options.tls_cert_file = absl::GetFlag(FLAGS_tls_cert_file);
  options.tls_key_file = absl::GetFlag(FLAGS_tls_key_file);
  options.tls_client_ca_file = absl::GetFlag(FLAGS_tls_client_ca_file);
  options.auth_token_file = absl::GetFlag(FLAGS_auth_token_file);
  options.auth_metrics = absl::GetFlag(FLAGS_auth_metrics);
  options.model_control = absl::GetFlag(FLAGS_model_control);
  options.admin_token_file = absl::GetFlag(FLAGS_admin_token_file);
  options.repository_poll = absl::GetFlag(FLAGS_repository_poll);
  options.num_compute_threads = absl::GetFlag(FLAGS_num_compute_threads);
  options.numa = absl::GetFlag(FLAGS_numa);
  options.drain_delay = absl::GetFlag(FLAGS_drain_delay);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  return options;
}

// SIGTERM and SIGINT end the server, SIGHUP makes it look for changed models
// and files.
sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

// Returns with the next signal that ends the server.
void WaitForEnd(const sigset_t& set, absl::FunctionRef<void()> on_hangup) {
  int signal = 0;
  while (true) {
    sigwait(&set, &signal);
    if (signal != SIGHUP) return;
    on_hangup();
  }
}

// What the thread that waits for signals and the main thread tell each other.
struct LifeCycle {
  Server* server = nullptr;  // once it serves
  absl::Notification serving;
  absl::Notification end;
};

void WaitForSignals(const std::shared_ptr<LifeCycle>& life_cycle) {
  const sigset_t set = Signals();
  WaitForEnd(set, [&life_cycle] {
    if (life_cycle->serving.HasBeenNotified()) {
      life_cycle->server->LookForChangedFiles();
      life_cycle->server->LookForChangedModels();
    }
  });
  if (!life_cycle->serving.HasBeenNotified()) {
    LogInfo("stopped while loading");
    FlushLog();
    _exit(0);
  }
  life_cycle->end.Notify();
  // Process managers may signal the process and its group: what comes at once
  // is the same signal.
  const absl::Time first = absl::Now();
  do {
    WaitForEnd(set, [] {});
  } while (absl::Now() - first < absl::Milliseconds(500));
  LogWarning("second signal: stopping at once");
  FlushLog();
  _exit(1);
}

// gRPC aborts where it can't open what it needs. The soft limit is raised
// later.
absl::Status CheckOpenFiles() {
  constexpr rlim_t kLeast = 32;  // a dozen, and some connections
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max >= kLeast) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("limit of open files (ulimit -n): want at least ", kLeast,
                   ", got ", limit.rlim_max));
}

int Main(int argc, char** argv) {
  // What gRPC has to say on its own is for its developers; what went wrong is
  // in our one line.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread runs yet.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const std::vector<std::string> positional = ParseCommandLineOrExit(
      argc, argv,
      "moe-server serves the feed-forward layers of transformer models over "
      "gRPC.\n\n"
      "  moe-server --model=NAME=DIR [--model=NAME=DIR ...]\n"
      "  moe-server --demo\n\n"
      "Prints one line to stdout when it can serve:\n"
      "  READY grpc=HOST:PORT metrics=HOST:PORT",
      "moe_server.cc");
  if (!positional.empty()) {
    PrintError(
        absl::StrCat("want flags only, got \"", positional.front(), "\""));
    return 2;
  }
  if (const absl::Status status = CheckOpenFiles(); !status.ok()) {
    PrintError(status.message());
    return 2;
  }
  const ServiceManager service_manager = ServiceManager::FromEnvironment();
#ifdef NDEBUG
  // Debian's abseil looks for cycles of locks at each lock, gRPC's included.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  // All threads inherit the mask: the signals reach sigwait only.
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A fault names itself on stderr, with its stack, and ends the process by the
  // signal that it is.
  absl::InitializeSymbolizer(argv[0]);
  absl::InstallFailureSignalHandler(absl::FailureSignalHandlerOptions());
  const auto life_cycle = std::make_shared<LifeCycle>();
  std::thread(WaitForSignals, life_cycle).detach();

  const auto options = OptionsFromFlags();
  auto server = options.ok() ? Server::Start(*options) : options.status();
  if (!server.ok()) {
    PrintError(server.status().message());
    return 2;
  }
  // Who waits for READY finds in the log what led to it.
  FlushLog();
  life_cycle->server = server->get();
  life_cycle->serving.Notify();
  absl::PrintF("READY grpc=%s metrics=%s\n", (*server)->grpc_address(),
               (*server)->metrics_address());
  // Who waits for this line would wait for ever.
  if (const int code = ExitCode(0); code != 0) return code;
  service_manager.Tell("READY=1\nSTATUS=serving");
  life_cycle->end.WaitForNotification();
  service_manager.Tell("STOPPING=1\nSTATUS=draining");
  (*server)->Drain();
  // Nothing is left to lose; giving back threads and weights one by one would
  // only take time.
  FlushLog();
  std::fflush(stdout);
  _exit(0);
}

}  // namespace
}  // namespace moe

int main(int argc, char** argv) {
  try {
    return moe::Main(argc, argv);
  } catch (const std::system_error& error) {
    // The standard library's threads say it this way.
    moe::PrintError(absl::StrCat("can't start a thread: ", error.what(),
                                 "; want a higher limit of processes (ulimit "
                                 "-u, pids.max) or of memory"));
  } catch (const std::bad_alloc&) {
    moe::PrintError("memory: not enough to start");
  }
  // Threads that did start may wait for ones that did not.
  std::fflush(stderr);
  _exit(2);
}
