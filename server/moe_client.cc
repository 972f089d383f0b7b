// moe-client: one command per run.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experts/base/status_macros.h"
#include "server/client/commands.h"
#include "server/client/connection.h"
#include "server/client/doctor.h"
#include "server/client/expert_loads.h"
#include "server/client/load.h"
#include "server/client/metrics_page.h"
#include "server/client/plan.h"
#include "server/client/verify.h"
#include "server/common/flags.h"
#include "server/common/index_set.h"
#include "server/common/logging.h"
#include "server/common/standard_streams.h"

namespace moe {
namespace {

// Element types as --dtype calls them.
struct DTypeName {
  v1::DType dtype;
  const char* name;
};
constexpr DTypeName kDTypes[] = {
    {v1::F32, "f32"}, {v1::BF16, "bf16"}, {v1::F16, "f16"}};

std::string DTypeFlag(v1::DType dtype) {
  for (const DTypeName& known : kDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  return "";
}

}  // namespace
}  // namespace moe

// What these structures hold by themselves is the default of each flag.
using moe::ConnectionOptions;
using moe::DoctorOptions;
using moe::ForwardOptions;
using moe::LoadRunOptions;
using moe::PlanOptions;

ABSL_FLAG(std::string, server, ConnectionOptions{}.address,
          "HOST:PORT or unix:PATH of the server, or any gRPC target.");
ABSL_FLAG(bool, tls, ConnectionOptions{}.caller.tls,
          "Use TLS, trusting the system's authorities.");
ABSL_FLAG(std::string, tls_ca_file, ConnectionOptions{}.caller.ca_file,
          "Use TLS, trusting the certificates in this PEM file.");
ABSL_FLAG(std::string, tls_cert_file, ConnectionOptions{}.caller.cert_file,
          "PEM file of the certificate that identifies this client.");
ABSL_FLAG(std::string, tls_key_file, ConnectionOptions{}.caller.key_file,
          "PEM file of its key.");
ABSL_FLAG(std::string, tls_server_name,
          ConnectionOptions{}.caller.tls_server_name,
          "The name that the server's certificate is for, where --server is "
          "another.");
ABSL_FLAG(std::string, metrics, DoctorOptions{}.metrics_address,
          "doctor, plan: HOST:PORT of the server's metrics; empty = port 9464 "
          "of its host.");
ABSL_FLAG(std::string, token_file, ConnectionOptions{}.caller.token_file,
          "File whose first line is sent as bearer token.");
ABSL_FLAG(absl::Duration, timeout, ConnectionOptions{}.timeout,
          "How long a call may take.");
ABSL_FLAG(std::string, model, LoadRunOptions{}.model, "Name of the model.");
ABSL_FLAG(int, layer, ForwardOptions{}.layer, "forward: index of the layer.");
ABSL_FLAG(std::string, input, ForwardOptions{}.input,
          "forward: safetensors file with hidden_states [tokens, d_model].");
ABSL_FLAG(int64_t, random, ForwardOptions{}.random_tokens,
          "forward: tokens of random hidden states, without --input.");
ABSL_FLAG(uint64_t, seed, ForwardOptions{}.seed,
          "forward: seed of the random hidden states.");
ABSL_FLAG(std::vector<std::string>, dtype,
          {moe::DTypeFlag(ForwardOptions{}.dtype)},
          "forward, load: type of the random hidden states: f32, bf16 or f16; "
          "load draws from several.");
ABSL_FLAG(std::string, output, ForwardOptions{}.output,
          "forward: safetensors file to write the answer to. plan: file to "
          "write the placement to, for --shards of moe-server.");
ABSL_FLAG(std::string, vectors, "",
          "verify: safetensors file with inputs and expected outputs.");
ABSL_FLAG(std::vector<std::string>, layers, {},
          "load: layers, as in 0-3,7; empty = all.");
ABSL_FLAG(std::string, tokens, "1",
          "load: tokens of a request: 8, or evenly from 1-16, or weighted as "
          "in 1:9,512:1.");
ABSL_FLAG(int, concurrency, LoadRunOptions{}.concurrency,
          "load: requests that are in flight at a time.");
ABSL_FLAG(double, rate, LoadRunOptions{}.rate,
          "load: in place of --concurrency, requests that begin per second at "
          "random times, whether or not earlier ones have been answered.");
ABSL_FLAG(int, connections, LoadRunOptions{}.connections,
          "load: connections to the server.");
ABSL_FLAG(bool, stream, LoadRunOptions{}.stream,
          "load: use one ForwardStream per connection.");
ABSL_FLAG(absl::Duration, duration, LoadRunOptions{}.duration,
          "load: how long to measure.");
ABSL_FLAG(absl::Duration, warmup, LoadRunOptions{}.warmup,
          "load: how long to run before.");
ABSL_FLAG(int64_t, requests, LoadRunOptions{}.max_requests,
          "load: end after that many requests; 0 = after --duration.");
ABSL_FLAG(bool, check, LoadRunOptions{}.check,
          "load: compare each answer with those to its rows sent alone; exit "
          "code 1 if they differ.");
ABSL_FLAG(std::string, json, LoadRunOptions{}.json_file,
          "load: file to write the result to.");
ABSL_FLAG(std::string, prometheus, "",
          "plan: http://HOST:PORT of a Prometheus, to ask it for the loads of "
          "all servers in place of one server's metrics.");
ABSL_FLAG(absl::Duration, window, absl::Hours(1),
          "plan: of which time, with --prometheus.");
ABSL_FLAG(std::string, loads, "",
          "plan: file of loads, the JSON of a moe.v1.ExpertLoads, in place of "
          "metrics.");
ABSL_FLAG(int, num_shards, PlanOptions{}.num_shards,
          "plan: how many shards there are.");
ABSL_FLAG(int, slots_per_shard, PlanOptions{}.slots_per_shard,
          "plan: experts of a layer that a shard holds; 0 = as many as it "
          "takes for each expert and --replicas.");
ABSL_FLAG(int, replicas, PlanOptions{}.replicas,
          "plan: copies of a layer's experts besides the first ones.");
ABSL_FLAG(int, nodes, PlanOptions{}.num_nodes,
          "plan: hosts that the shards are on, the same number on each, in "
          "their order.");
ABSL_FLAG(int, groups, PlanOptions{}.num_groups,
          "plan: groups of experts that are chosen together; each is kept on "
          "one node.");
ABSL_FLAG(std::vector<std::string>, targets, PlanOptions{}.targets,
          "plan: gRPC targets of a shard's replicas, {i} in the place of its "
          "number, as in dns:///moe-shard-{i}:50051.");
ABSL_FLAG(double, output_tolerance, LoadRunOptions{}.tolerance,
          "verify, load --check: allowed error of the output, relative to the "
          "largest value "
          "of its row.");

namespace moe {
namespace {

constexpr char kUsage[] =
    "moe-client talks to a moe-server.\n\n"
    "  moe-client info      what the server serves\n"
    "  moe-client forward   sends a batch through a layer\n"
    "  moe-client verify    compares answers with recorded vectors; exit code "
    "1 if they differ\n"
    "  moe-client load      measures latency and throughput; exit code 1 if no "
    "request succeeded\n"
    "  moe-client plan      places experts on shards by their load\n"
    "  moe-client health    exit code 0 if the server is serving\n"
    "  moe-client doctor    says what is wrong with a server, and what to do; "
    "exit code 1 if it does not work";

absl::StatusOr<v1::DType> ParseDType(const std::string& name) {
  for (const DTypeName& known : kDTypes) {
    if (known.name == name) return known.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype: want f32, bf16 or f16, got \"", name, "\""));
}

absl::StatusOr<std::vector<v1::DType>> ParseDTypes() {
  std::vector<v1::DType> dtypes;
  for (const std::string& name : absl::GetFlag(FLAGS_dtype)) {
    MOE_ASSIGN_OR_RETURN(const v1::DType dtype, ParseDType(name));
    dtypes.push_back(dtype);
  }
  if (dtypes.empty()) return ParseDType("").status();
  return dtypes;
}

ConnectionOptions ConnectionFromFlags() {
  return {.address = absl::GetFlag(FLAGS_server),
          .timeout = absl::GetFlag(FLAGS_timeout),
          .caller = {.tls = absl::GetFlag(FLAGS_tls),
                     .ca_file = absl::GetFlag(FLAGS_tls_ca_file),
                     .cert_file = absl::GetFlag(FLAGS_tls_cert_file),
                     .key_file = absl::GetFlag(FLAGS_tls_key_file),
                     .tls_server_name = absl::GetFlag(FLAGS_tls_server_name),
                     .token_file = absl::GetFlag(FLAGS_token_file)}};
}

absl::StatusOr<bool> RunLoad() {
  LoadRunOptions options;
  options.connection = ConnectionFromFlags();
  options.model = absl::GetFlag(FLAGS_model);
  MOE_ASSIGN_OR_RETURN(
      options.layers,
      ParseIndexList("--layers",
                     absl::StrJoin(absl::GetFlag(FLAGS_layers), ",")));
  MOE_ASSIGN_OR_RETURN(options.dtypes, ParseDTypes());
  MOE_ASSIGN_OR_RETURN(options.tokens,
                       TokenDistribution::Parse(absl::GetFlag(FLAGS_tokens)));
  options.concurrency = absl::GetFlag(FLAGS_concurrency);
  options.rate = absl::GetFlag(FLAGS_rate);
  options.connections = absl::GetFlag(FLAGS_connections);
  options.stream = absl::GetFlag(FLAGS_stream);
  options.duration = absl::GetFlag(FLAGS_duration);
  options.warmup = absl::GetFlag(FLAGS_warmup);
  options.max_requests = absl::GetFlag(FLAGS_requests);
  options.check = absl::GetFlag(FLAGS_check);
  options.tolerance = absl::GetFlag(FLAGS_output_tolerance);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.json_file = absl::GetFlag(FLAGS_json);
  return RunLoadTest(options);
}

absl::Status RunForward(const Connection& connection) {
  ForwardOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.layer = absl::GetFlag(FLAGS_layer);
  options.input = absl::GetFlag(FLAGS_input);
  options.random_tokens = absl::GetFlag(FLAGS_random);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.output = absl::GetFlag(FLAGS_output);
  MOE_ASSIGN_OR_RETURN(const std::vector<v1::DType> dtypes, ParseDTypes());
  options.dtype = dtypes.front();
  if (options.random_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--random: want 0 or more, got ", options.random_tokens));
  }
  return Forward(connection, options);
}

absl::StatusOr<std::vector<LayerLoads>> LoadsFromFlags() {
  const std::string file = absl::GetFlag(FLAGS_loads);
  const std::string prometheus = absl::GetFlag(FLAGS_prometheus);
  if (!file.empty() && !prometheus.empty()) {
    return absl::InvalidArgumentError(
        "--loads: want it or --prometheus, got both");
  }
  if (!file.empty()) return LoadsOfFile(file);
  if (!prometheus.empty()) {
    return LoadsOfPrometheus(prometheus, absl::GetFlag(FLAGS_window));
  }
  MOE_ASSIGN_OR_RETURN(
      const MetricsPage page,
      FetchMetrics(ConnectionFromFlags(), absl::GetFlag(FLAGS_metrics)));
  return LoadsOfPage(page);
}

absl::Status RunPlan() {
  MOE_ASSIGN_OR_RETURN(const std::vector<LayerLoads> loads, LoadsFromFlags());
  MOE_ASSIGN_OR_RETURN(
      const Plan plan,
      MakePlan(loads, {.num_shards = absl::GetFlag(FLAGS_num_shards),
                       .slots_per_shard = absl::GetFlag(FLAGS_slots_per_shard),
                       .replicas = absl::GetFlag(FLAGS_replicas),
                       .num_nodes = absl::GetFlag(FLAGS_nodes),
                       .num_groups = absl::GetFlag(FLAGS_groups),
                       .targets = absl::GetFlag(FLAGS_targets)}));
  return PrintAndWritePlan(plan, absl::GetFlag(FLAGS_output));
}

absl::Status CheckDurations() {
  constexpr absl::Duration kMax = absl::Hours(10'000);
  struct Limit {
    const char* flag;
    absl::Duration value;
    bool zero;  // allowed
  };
  for (const auto& [flag, value, zero] :
       {Limit{"--timeout", absl::GetFlag(FLAGS_timeout), false},
        Limit{"--duration", absl::GetFlag(FLAGS_duration), false},
        Limit{"--warmup", absl::GetFlag(FLAGS_warmup), true},
        Limit{"--window", absl::GetFlag(FLAGS_window), false}}) {
    if (value < absl::ZeroDuration() || value > kMax ||
        (value == absl::ZeroDuration() && !zero)) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag, zero ? ": want 0 to " : ": want more than 0, at most ",
          absl::FormatDuration(kMax), ", got ", absl::FormatDuration(value)));
    }
  }
  return absl::OkStatus();
}

// 0 = done, 1 = the answer is no, 2 = an error.
absl::StatusOr<int> Run(const std::string& command) {
  MOE_RETURN_IF_ERROR(CheckDurations());
  if (command == "doctor") {
    const auto findings =
        Diagnose({.connection = ConnectionFromFlags(),
                  .metrics_address = absl::GetFlag(FLAGS_metrics)});
    return PrintFindings(findings) ? 0 : 1;
  }
  if (command == "plan") {
    MOE_RETURN_IF_ERROR(RunPlan());
    return 0;
  }
  MOE_ASSIGN_OR_RETURN(const Connection connection,
                       Connection::Open(ConnectionFromFlags()));
  if (command == "info") {
    MOE_RETURN_IF_ERROR(Info(connection));
    return 0;
  }
  if (command == "forward") {
    MOE_RETURN_IF_ERROR(RunForward(connection));
    return 0;
  }
  if (command == "verify") {
    if (absl::GetFlag(FLAGS_vectors).empty()) {
      return absl::InvalidArgumentError("--vectors: want a file, got none");
    }
    MOE_ASSIGN_OR_RETURN(const bool pass,
                         Verify(connection, absl::GetFlag(FLAGS_model),
                                absl::GetFlag(FLAGS_vectors),
                                absl::GetFlag(FLAGS_output_tolerance)));
    return pass ? 0 : 1;
  }
  if (command == "load") {
    MOE_ASSIGN_OR_RETURN(const bool right, RunLoad());
    return right ? 0 : 1;
  }
  if (command == "health") {
    MOE_ASSIGN_OR_RETURN(const bool healthy, connection.Healthy());
    absl::PrintF("%s\n", healthy ? "SERVING" : "NOT_SERVING");
    return healthy ? 0 : 1;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "command: want info, forward, verify, load, plan, health or doctor, got "
      "\"",
      command, "\""));
}

int Main(int argc, char** argv) {
  // What gRPC has to say is in the status.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread runs yet.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
#ifdef NDEBUG
  // Debian's abseil looks for cycles of locks at each lock, gRPC's included.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  const std::vector<std::string> positional =
      ParseCommandLineOrExit(argc, argv, kUsage, "moe_client.cc");
  if (positional.size() != 1) {
    PrintError(absl::StrCat("want one command, got ", positional.size(),
                            "; see --help"));
    return 2;
  }
  const absl::StatusOr<int> result = Run(positional.front());
  if (!result.ok()) {
    PrintError(absl::StrCat(absl::StatusCodeToString(result.status().code()),
                            ": ", result.status().message()));
    return 2;
  }
  return ExitCode(*result);
}

}  // namespace
}  // namespace moe

int main(int argc, char** argv) { return moe::Main(argc, argv); }
