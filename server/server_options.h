// Everything that can be set about a server. Flags fill it; see FLAGS.md for
// the table.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "experts/base/weight_format.h"
#include "experts/expert_engine.h"
#include "moe/v1/moe.pb.h"
#include "server/common/index_set.h"
#include "server/metrics/expert_metrics.h"
#include "server/models/model_source.h"
#include "server/transport/caller.h"

namespace moe {

struct ServerOptions {
  std::vector<ModelSource> models;
  std::string model_repository;  // each subfolder is a model; empty = none
  bool demo = false;             // serve the built-in model "demo"

  // "HOST:PORT" or "unix:PATH".
  std::string listen_address = "127.0.0.1:50051";
  // "HOST:PORT"; empty = no metrics.
  std::string metrics_address = "127.0.0.1:9464";

  WeightFormat weight_format = WeightFormat::kAuto;
  ExpertEngine engine = ExpertEngine::kSimd;  // kOneDnn: float32 weights
  // Only kernels whose results are the same bytes on every CPU with FMA.
  bool deterministic = false;
  std::vector<int> layers;  // empty = all

  // Models spread over several servers: see server/README.md.
  // Routed experts that this server holds, of every layer; absent = all, or
  // none where it is a front.
  std::optional<IndexSet> experts;
  // Placement file: this server is a front; or, with a name, the shard that is
  // called so.
  std::string shards_file;
  std::string shard_name;
  // How a front calls its shards.
  CallerOptions shard_caller;
  absl::Duration shard_timeout = absl::Seconds(30);
  absl::Duration shard_keepalive = absl::Seconds(1);
  double shard_hedge_percentile = 0;  // 0 = calls are not hedged
  // Leave out experts of shards that do not answer, instead of failing.
  bool leave_out_missing = false;

  bool front() const { return !shards_file.empty() && shard_name.empty(); }
  bool shard() const {
    return !shard_name.empty() || (experts.has_value() && !front());
  }

  ExpertMetrics expert_metrics = ExpertMetrics::kAuto;
  // Measure the machine's memory bandwidth and peak speed when starting, in a
  // tenth of a second, for metrics to compare with.
  bool measure_machine = true;

  // Largest message either way. The default holds 8192 tokens of d_model 7168
  // in float32.
  int64_t max_message_bytes = int64_t{256} << 20;
  int64_t max_request_tokens = 8192;
  // Tokens that run together at most; larger requests run in parts.
  int64_t max_batch_tokens = 1024;
  // Batches of a front that are on their way at a time: while shards compute
  // one, the next is gathered and the last one added up. With few, requests
  // wait in the front when they could share the shards' next batch.
  int64_t max_batches_in_flight = 32;
  // How long a batch that is not full may wait for company, counted from the
  // arrival of its oldest request. An idle engine never waits.
  absl::Duration max_queue_delay = absl::ZeroDuration();
  int64_t max_queue_tokens = 65536;
  // Tensor bytes of requests and responses, from admission until sent.
  int64_t max_queue_bytes = int64_t{1} << 30;

  // How long a response may take to be sent before its call is ended.
  absl::Duration send_timeout = absl::Minutes(2);

  int max_connections = 10'000;
  int max_concurrent_streams = 1024;  // calls at a time, per connection

  // PEM files; a certificate turns TLS on, client authorities make clients show
  // a certificate.
  std::string tls_cert_file;
  std::string tls_key_file;
  std::string tls_client_ca_file;
  // File of bearer tokens that callers must show; empty = none needed. Health
  // needs none.
  std::string auth_token_file;
  // Whether metrics need it too, as password of HTTP basic authentication.
  bool auth_metrics = false;

  // Whether callers may load and unload models; with a file of tokens, those
  // who show one of them.
  bool model_control = false;
  std::string admin_token_file;
  // How often to look for models that have changed on disk; zero = never.
  absl::Duration repository_poll = absl::ZeroDuration();

  int num_compute_threads = 0;  // 0 = what affinity and cgroup quota allow
  // Whether weights and threads are placed by NUMA node.
  bool numa = true;
  // The type of rows between a front and its shards: F32 or BF16.
  v1::DType shard_wire_dtype = v1::F32;

  // How long to answer as usual after a SIGTERM, health apart, so that load
  // balancers can take notice.
  absl::Duration drain_delay = absl::ZeroDuration();
  // How long accepted requests may then take.
  absl::Duration drain_timeout = absl::Seconds(30);

  // Errors: INVALID_ARGUMENT naming the flag, wanted and got.
  absl::Status Validate() const;
};

}  // namespace moe
