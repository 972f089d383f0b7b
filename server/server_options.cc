#include "server/server_options.h"

#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

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

}  // namespace

absl::Status ServerOptions::ValidateShards() const {
  if (!shard_name.empty() && shards_file.empty()) {
    return Refuse("--shard_name: want --shards=FILE with it");
  }
  if (!shard_name.empty() && experts.has_value()) {
    return Refuse(
        "--experts: want none with --shard_name, the placement says which");
  }
  if (experts.has_value() && experts->empty()) {
    return Refuse("--experts: want some, as in 0-63; got none");
  }
  if (shard_timeout <= absl::ZeroDuration()) {
    return Refuse("--shard_timeout: want more than 0, got ",
                  absl::FormatDuration(shard_timeout));
  }
  if (shard_keepalive < absl::Seconds(1)) {
    return Refuse("--shard_keepalive: want 1s or more, got ",
                  absl::FormatDuration(shard_keepalive));
  }
  if (shard_hedge_percentile != 0 &&
      !(shard_hedge_percentile >= 50 && shard_hedge_percentile < 100)) {
    return Refuse(
        "--shard_hedge_percentile: want 0 (never), or 50 to below 100, got ",
        shard_hedge_percentile);
  }
  return absl::OkStatus();
}

absl::Status ServerOptions::Validate() const {
  MOE_RETURN_IF_ERROR(ValidateShards());
  if (models.empty() && model_repository.empty() && !demo) {
    return Refuse(
        "--model: want at least one NAME=DIR, or "
        "--model_repository=DIR, or --demo; got none");
  }
  std::set<std::string> names;
  if (demo) names.insert("demo");
  for (const ModelSource& model : models) {
    if (!names.insert(model.name).second) {
      return Refuse("--model: want distinct names, got \"", model.name,
                    "\" twice");
    }
  }
  if (engine == ExpertEngine::kOneDnn && weight_format != WeightFormat::kAuto &&
      weight_format != WeightFormat::kF32) {
    return Refuse(
        "--weight_format: want auto or f32 with --engine=onednn, got ",
        WeightFormatName(weight_format));
  }
  if (!absl::StartsWith(listen_address, "unix:")) {
    MOE_RETURN_IF_ERROR(CheckAddress("--listen_address", listen_address));
  }
  if (!metrics_address.empty()) {
    MOE_RETURN_IF_ERROR(CheckAddress("--metrics_address", metrics_address));
  }
  if (tls_cert_file.empty() != tls_key_file.empty()) {
    return Refuse("--tls_cert_file: want it together with --tls_key_file");
  }
  if (!tls_client_ca_file.empty() && tls_cert_file.empty()) {
    return Refuse("--tls_client_ca_file: want --tls_cert_file with it");
  }
  if (auth_metrics && auth_token_file.empty()) {
    return Refuse("--auth_metrics: want --auth_token_file with it");
  }
  if (model_control && !admin_token_file.empty()) {
    return Refuse(
        "--model_control: want it, or --admin_token_file; got both: anyone "
        "could load models without a token");
  }
  if (repository_poll < absl::ZeroDuration() ||
      repository_poll == absl::InfiniteDuration()) {
    return Refuse(
        "--repository_poll: want a finite duration of 0 or more, got ",
        absl::FormatDuration(repository_poll));
  }
  // gRPC counts message bytes in an int.
  if (max_message_bytes < 1024 ||
      max_message_bytes > std::numeric_limits<int>::max()) {
    return Refuse("--max_message_bytes: want 1024 to ",
                  std::numeric_limits<int>::max(), ", got ", max_message_bytes);
  }
  const auto check_positive = [](absl::string_view flag,
                                 int64_t value) -> absl::Status {
    if (value >= 1) return absl::OkStatus();
    return Refuse(flag, ": want at least 1, got ", value);
  };
  MOE_RETURN_IF_ERROR(
      check_positive("--max_request_tokens", max_request_tokens));
  MOE_RETURN_IF_ERROR(check_positive("--max_batch_tokens", max_batch_tokens));
  if (max_queue_delay < absl::ZeroDuration() ||
      max_queue_delay > absl::Seconds(1)) {
    return Refuse("--max_queue_delay: want 0 to 1s, got ",
                  absl::FormatDuration(max_queue_delay));
  }
  MOE_RETURN_IF_ERROR(check_positive("--max_queue_tokens", max_queue_tokens));
  MOE_RETURN_IF_ERROR(check_positive("--max_queue_bytes", max_queue_bytes));
  if (send_timeout < absl::Milliseconds(1) || send_timeout > absl::Hours(24)) {
    return Refuse("--send_timeout: want 1ms to 24h, got ",
                  absl::FormatDuration(send_timeout));
  }
  MOE_RETURN_IF_ERROR(check_positive("--max_connections", max_connections));
  MOE_RETURN_IF_ERROR(
      check_positive("--max_concurrent_streams", max_concurrent_streams));
  if (num_compute_threads < 0 || num_compute_threads > 4096) {
    return Refuse("--num_compute_threads: want 0 to 4096, got ",
                  num_compute_threads);
  }
  if (drain_delay < absl::ZeroDuration() ||
      drain_delay == absl::InfiniteDuration()) {
    return Refuse("--drain_delay: want a finite duration of 0 or more, got ",
                  absl::FormatDuration(drain_delay));
  }
  if (drain_timeout < absl::ZeroDuration() ||
      drain_timeout == absl::InfiniteDuration()) {
    return Refuse("--drain_timeout: want a finite duration of 0 or more, got ",
                  absl::FormatDuration(drain_timeout));
  }
  return absl::OkStatus();
}

}  // namespace moe
