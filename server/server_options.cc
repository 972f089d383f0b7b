#include "server/server_options.h"

#include <limits>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "experts/base/status_macros.h"
#include "server/common/refuse.h"

namespace moe {
namespace {

absl::Status CheckAddress(absl::string_view flag, absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return Refuse(flag, ": want HOST:PORT, got \"", address, "\"");
  }
  return absl::OkStatus();
}

absl::Status CheckPositive(absl::string_view flag, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return Refuse(flag, ": want at least 1, got ", value);
}

absl::Status CheckFinite(absl::string_view flag, absl::Duration value) {
  if (value >= absl::ZeroDuration() && value != absl::InfiniteDuration()) {
    return absl::OkStatus();
  }
  return Refuse(flag, ": want a finite duration of 0 or more, got ",
                absl::FormatDuration(value));
}

absl::Status CheckShards(const ServerOptions& options) {
  if (!options.shard_name.empty() && options.shards_file.empty()) {
    return Refuse("--shard_name: want --shards=FILE with it");
  }
  if (!options.shard_name.empty() && options.experts.has_value()) {
    return Refuse(
        "--experts: want none with --shard_name, the placement says which");
  }
  if (options.experts.has_value() && options.experts->empty()) {
    return Refuse("--experts: want some, as in 0-63; got none");
  }
  if (options.shard_timeout <= absl::ZeroDuration()) {
    return Refuse("--shard_timeout: want more than 0, got ",
                  absl::FormatDuration(options.shard_timeout));
  }
  if (options.shard_keepalive < absl::Seconds(1)) {
    return Refuse("--shard_keepalive: want 1s or more, got ",
                  absl::FormatDuration(options.shard_keepalive));
  }
  const double percentile = options.shard_hedge_percentile;
  if (percentile != 0 && !(percentile >= 50 && percentile < 100)) {
    return Refuse(
        "--shard_hedge_percentile: want 0 (never), or 50 to below 100, got ",
        percentile);
  }
  return absl::OkStatus();
}

absl::Status CheckModels(const ServerOptions& options) {
  if (options.models.empty() && options.model_repository.empty() &&
      !options.demo) {
    return Refuse(
        "--model: want at least one NAME=DIR, or "
        "--model_repository=DIR, or --demo; got none");
  }
  std::set<std::string> names;
  if (options.demo) names.insert("demo");
  for (const ModelSource& model : options.models) {
    if (!names.insert(model.name).second) {
      return Refuse("--model: want distinct names, got \"", model.name,
                    "\" twice");
    }
  }
  if (options.engine == ExpertEngine::kOneDnn &&
      options.weight_format != WeightFormat::kAuto &&
      options.weight_format != WeightFormat::kF32) {
    return Refuse(
        "--weight_format: want auto or f32 with --engine=onednn, got ",
        WeightFormatName(options.weight_format));
  }
  return absl::OkStatus();
}

// Where to listen, and who may call.
absl::Status CheckAccess(const ServerOptions& options) {
  if (!absl::StartsWith(options.listen_address, "unix:")) {
    MOE_RETURN_IF_ERROR(
        CheckAddress("--listen_address", options.listen_address));
  }
  if (!options.metrics_address.empty()) {
    MOE_RETURN_IF_ERROR(
        CheckAddress("--metrics_address", options.metrics_address));
  }
  if (options.tls_cert_file.empty() != options.tls_key_file.empty()) {
    return Refuse("--tls_cert_file: want it together with --tls_key_file");
  }
  if (!options.tls_client_ca_file.empty() && options.tls_cert_file.empty()) {
    return Refuse("--tls_client_ca_file: want --tls_cert_file with it");
  }
  if (options.auth_metrics && options.auth_token_file.empty()) {
    return Refuse("--auth_metrics: want --auth_token_file with it");
  }
  if (options.model_control && !options.admin_token_file.empty()) {
    return Refuse(
        "--model_control: want it, or --admin_token_file; got both: anyone "
        "could load models without a token");
  }
  return absl::OkStatus();
}

// Sizes and counts.
absl::Status CheckLimits(const ServerOptions& options) {
  // gRPC counts message bytes in an int.
  constexpr int64_t kMostBytes = std::numeric_limits<int>::max();
  if (options.max_message_bytes < 1024 ||
      options.max_message_bytes > kMostBytes) {
    return Refuse("--max_message_bytes: want 1024 to ", kMostBytes, ", got ",
                  options.max_message_bytes);
  }
  const std::pair<absl::string_view, int64_t> positive[] = {
      {"--max_request_tokens", options.max_request_tokens},
      {"--max_batch_tokens", options.max_batch_tokens},
      {"--max_queue_tokens", options.max_queue_tokens},
      {"--max_queue_bytes", options.max_queue_bytes},
      {"--max_connections", options.max_connections},
      {"--max_concurrent_streams", options.max_concurrent_streams}};
  for (const auto& [flag, value] : positive) {
    MOE_RETURN_IF_ERROR(CheckPositive(flag, value));
  }
  if (options.max_batches_in_flight < 1 || options.max_batches_in_flight > 64) {
    return Refuse("--max_batches_in_flight: want 1 to 64, got ",
                  options.max_batches_in_flight);
  }
  if (options.num_compute_threads < 0 || options.num_compute_threads > 4096) {
    return Refuse("--num_compute_threads: want 0 to 4096, got ",
                  options.num_compute_threads);
  }
  return absl::OkStatus();
}

absl::Status CheckTimes(const ServerOptions& options) {
  if (options.max_queue_delay < absl::ZeroDuration() ||
      options.max_queue_delay > absl::Seconds(1)) {
    return Refuse("--max_queue_delay: want 0 to 1s, got ",
                  absl::FormatDuration(options.max_queue_delay));
  }
  if (options.send_timeout < absl::Milliseconds(1) ||
      options.send_timeout > absl::Hours(24)) {
    return Refuse("--send_timeout: want 1ms to 24h, got ",
                  absl::FormatDuration(options.send_timeout));
  }
  MOE_RETURN_IF_ERROR(
      CheckFinite("--repository_poll", options.repository_poll));
  MOE_RETURN_IF_ERROR(CheckFinite("--drain_delay", options.drain_delay));
  return CheckFinite("--drain_timeout", options.drain_timeout);
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  MOE_RETURN_IF_ERROR(CheckShards(*this));
  MOE_RETURN_IF_ERROR(CheckModels(*this));
  MOE_RETURN_IF_ERROR(CheckAccess(*this));
  MOE_RETURN_IF_ERROR(CheckLimits(*this));
  return CheckTimes(*this);
}

}  // namespace moe
