#include "server/client/doctor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/common/bytes_text.h"
#include "server/wire/tensor_codec.h"

namespace moe {
namespace {

// What gRPC clients accept unless told otherwise.
constexpr int64_t kDefaultClientBytes = int64_t{4} << 20;

bool IsLocal(absl::string_view address) {
  return absl::StartsWith(address, "unix:") ||
         absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:");
}

bool UsesTls(const ConnectionOptions& options) {
  const CallerOptions& caller = options.caller;
  return caller.tls || !caller.ca_file.empty() || !caller.cert_file.empty();
}

std::string Milliseconds(absl::Duration duration) {
  return absl::StrFormat("%.2f ms", absl::ToDoubleMilliseconds(duration));
}

// Why a call did not get through, and what to try.
std::string WhyUnreachable(const absl::Status& status,
                           const ConnectionOptions& options) {
  const std::string message = absl::AsciiStrToLower(status.message());
  const auto has = [&](absl::string_view part) {
    return absl::StrContains(message, part);
  };
  std::string hint =
      "is the server running, and does --listen_address of "
      "moe-server name an address that can be reached from "
      "here?";
  if (has("refused") || has("no such file")) {
    hint =
        "nothing listens there; is moe-server running, and is this its "
        "--listen_address?";
  } else if (has("resolution") || has("dns")) {
    hint = "the name has no address";
  } else if (UsesTls(options) && (has("ssl") || has("handshake") ||
                                  has("certificate") || has("closed"))) {
    hint =
        "the TLS handshake failed: does the server use TLS, is its "
        "certificate of an authority in --tls_ca_file, for this name (or "
        "--tls_server_name), and does it ask for --tls_cert_file?";
  } else if (!UsesTls(options) &&
             (has("closed") || has("reset") || has("handshake"))) {
    hint =
        "the server hangs up: does it use TLS? Then give --tls_ca_file or "
        "--tls";
  } else if (absl::IsDeadlineExceeded(status)) {
    hint = "no answer in time: a firewall, or a server that is overloaded";
  }
  return absl::StrCat(options.address, ": ", hint,
                      " (gRPC says: ", status.message(), ")");
}

// Collects findings.
class Findings {
 public:
  template <typename... Parts>
  void Add(Verdict verdict, absl::string_view topic, const Parts&... parts) {
    list_.push_back({.verdict = verdict,
                     .topic = std::string(topic),
                     .text = absl::StrCat(parts...)});
  }
  std::vector<Finding> Take() { return std::move(list_); }
  void Append(std::vector<Finding> more) {
    std::move(more.begin(), more.end(), std::back_inserter(list_));
  }

 private:
  std::vector<Finding> list_;
};

// False if there is no point in going on.
bool DiagnoseConnection(const Connection& connection,
                        const ConnectionOptions& options, Findings& findings) {
  const absl::Time start = absl::Now();
  const absl::StatusOr<bool> healthy = connection.Healthy();
  const absl::Duration elapsed = absl::Now() - start;
  if (!healthy.ok()) {
    findings.Add(Verdict::kBad, "reachable",
                 WhyUnreachable(healthy.status(), options));
    return false;
  }
  findings.Add(Verdict::kFine, "reachable", options.address, " answers in ",
               Milliseconds(elapsed), ", connecting included");
  if (UsesTls(options)) {
    findings.Add(Verdict::kFine, "TLS", "the server's certificate is trusted");
  } else if (IsLocal(options.address)) {
    findings.Add(Verdict::kFine, "TLS", "none, and none needed on this host");
  } else {
    findings.Add(Verdict::kWarn, "TLS",
                 "none: anyone on the way can read and change what is sent; "
                 "see --tls_cert_file of moe-server");
  }
  if (*healthy) {
    findings.Add(Verdict::kFine, "health", "SERVING");
  } else {
    findings.Add(Verdict::kBad, "health",
                 "NOT_SERVING: models are still being loaded, or the server "
                 "is on its way out; its log says which");
  }
  return true;
}

// One token through the first layer of a model.
void TryForward(const Connection& connection, const v1::ModelInfo& model,
                Findings& findings) {
  if (model.layers().empty()) {
    findings.Add(Verdict::kWarn, "forward", model.name(), " has no layers");
    return;
  }
  const int layer = model.layers(0).layer();
  v1::ForwardRequest request;
  request.set_model(model.name());
  request.set_layer(layer);
  const std::vector<float> row(static_cast<size_t>(model.d_model()), 1.0F);
  Encode(ConstMatrix(row.data(), 1, model.d_model()), v1::F32,
         *request.mutable_hidden_states());
  const absl::Time start = absl::Now();
  const auto response = connection.Forward(request);
  const absl::Duration elapsed = absl::Now() - start;
  if (!response.ok()) {
    findings.Add(Verdict::kBad, "forward", model.name(), " layer ", layer, ": ",
                 absl::StatusCodeToString(response.status().code()), ": ",
                 response.status().message());
    return;
  }
  findings.Add(Verdict::kFine, "forward", "one token through layer ", layer,
               " of ", model.name(), " in ", Milliseconds(elapsed));
}

void DiagnoseLimits(const v1::ModelInfo& model, Findings& findings) {
  const int64_t row_bytes = 4 * model.d_model();
  if (row_bytes == 0) return;
  const int64_t by_bytes = model.max_message_bytes() / row_bytes;
  findings.Add(
      Verdict::kNote, "messages", model.name(), ": at most ",
      std::min(model.max_request_tokens(), by_bytes),
      " tokens of float32 in a "
      "request",
      by_bytes < model.max_request_tokens() ? " (--max_message_bytes)"
                                            : " (--max_request_tokens)",
      "; answers of more than ", kDefaultClientBytes / row_bytes,
      " tokens need grpc.max_receive_message_length above gRPC's 4 MiB in the "
      "client");
}

void DiagnoseModels(const Connection& connection, Findings& findings) {
  const auto models = connection.ListModels();
  if (absl::IsUnauthenticated(models.status())) {
    findings.Add(Verdict::kBad, "token",
                 "the server wants one that it knows: --token_file");
    return;
  }
  if (!models.ok()) {
    findings.Add(Verdict::kBad, "models", models.status().message());
    return;
  }
  if (models->models().empty()) {
    findings.Add(Verdict::kBad, "models",
                 "none has been loaded; the server's log says how far it is");
    return;
  }
  for (const v1::ModelInfo& model : models->models()) {
    findings.Add(Verdict::kFine, "model", model.name(), ": family ",
                 model.family(), ", ", model.layers_size(), " layers, d_model ",
                 model.d_model(), ", ",
                 BytesText(static_cast<double>(model.weights_bytes())),
                 " of weights (", model.weight_format(), ")");
    TryForward(connection, model, findings);
    DiagnoseLimits(model, findings);
  }
}

// Instruction sets whose kernels are the portable ones.
bool IsPortable(absl::string_view isa) {
  return isa == "SCALAR" || isa == "EMU128" || absl::StartsWith(isa, "SSE") ||
         absl::StartsWith(isa, "SSSE");
}

void DiagnoseBuild(const MetricsPage& page, Findings& findings) {
  for (const MetricsPage::Sample& build : page.All("moe_build_info")) {
    const auto label = [&](const char* name) {
      const auto found = build.labels.find(name);
      return found == build.labels.end() ? "?" : found->second;
    };
    findings.Add(IsPortable(label("isa")) ? Verdict::kWarn : Verdict::kFine,
                 "kernels", "moe-server ", label("version"), " (",
                 label("commit"), ") computes with kernels for ", label("isa"),
                 IsPortable(label("isa"))
                     ? ": this CPU has no AVX2, expect a fraction of the speed"
                     : "");
  }
}

void DiagnoseThreads(const MetricsPage& page, Findings& findings) {
  const auto threads = page.Sum("moe_compute_threads");
  const auto quota = page.Sum("moe_cgroup_quota_cpus");
  if (!threads || !quota) return;
  if (*quota == 0) {
    findings.Add(Verdict::kFine, "threads", *threads,
                 " compute threads, no CPU quota");
  } else if (*threads > std::ceil(*quota)) {
    findings.Add(Verdict::kWarn, "threads", *threads,
                 " compute threads share a quota of ", *quota,
                 " CPUs: they are stopped again and again; leave "
                 "--num_compute_threads at 0");
  } else if (*quota != std::floor(*quota)) {
    findings.Add(Verdict::kNote, "threads", *threads,
                 " compute threads, quota of ", *quota,
                 " CPUs: with a whole number none of them would have to wait");
  } else {
    findings.Add(Verdict::kFine, "threads", *threads,
                 " compute threads, quota of ", *quota, " CPUs");
  }
}

void DiagnoseMemory(const MetricsPage& page, Findings& findings) {
  const auto used = page.Sum("process_resident_memory_bytes");
  const auto limit = page.Sum("moe_memory_limit_bytes");
  if (used && limit && *limit > 0) {
    const bool tight = *used > 0.9 * *limit;
    findings.Add(tight ? Verdict::kWarn : Verdict::kFine, "memory",
                 BytesText(*used), " of ", BytesText(*limit), " used",
                 tight ? ": raise the limit, serve fewer --layers, or take a "
                         "smaller --weight_format"
                       : "");
  }
  const auto huge = page.Sum("moe_huge_pages_bytes");
  const auto weights = page.Sum("moe_model_weights_bytes");
  // What fits the cache hardly cares.
  constexpr double kWorthIt = 64e6;
  if (!huge || !weights) return;
  if (*weights < kWorthIt) {
    findings.Add(Verdict::kFine, "huge pages",
                 "not needed for weights this small");
  } else if (*huge < *weights / 2) {
    findings.Add(Verdict::kWarn, "huge pages", BytesText(*huge), " of ",
                 BytesText(*weights),
                 " of weights: reads are slower than they could be; on the "
                 "host: echo madvise > "
                 "/sys/kernel/mm/transparent_hugepage/enabled");
  } else {
    findings.Add(Verdict::kFine, "huge pages", BytesText(*huge), " for ",
                 BytesText(*weights), " of weights");
  }
  const auto files = page.Sum("process_open_fds");
  const auto max_files = page.Sum("process_max_fds");
  if (files && max_files && *files > 0.8 * *max_files) {
    findings.Add(Verdict::kWarn, "files", *files, " of ", *max_files,
                 " file descriptors are open: raise the limit (ulimit -n, "
                 "LimitNOFILE)");
  }
}

void DiagnoseSpeed(const MetricsPage& page, Findings& findings) {
  const auto read = page.Sum("moe_machine_read_bytes_per_second");
  const auto flops = page.Sum("moe_machine_flops_per_second");
  if (!read || !flops || *read == 0) return;
  const double seconds = page.Sum("moe_expert_seconds_total").value_or(0);
  const double least =
      page.Sum("moe_expert_roofline_seconds_total").value_or(0);
  findings.Add(
      Verdict::kNote, "speed",
      absl::StrFormat("the machine reads %.1f GB/s and computes %.0f GFLOP/s",
                      *read * 1e-9, *flops * 1e-9),
      seconds > 1
          ? absl::StrFormat("; experts ran at %.0f %% of that since the start",
                            100 * least / seconds)
          : "");
}

void DiagnoseTraffic(const MetricsPage& page, Findings& findings) {
  const double requests = page.Sum("moe_requests_total").value_or(0);
  const auto rejected = [&](const char* reason) {
    return page.Sum("moe_rejected_requests_total", {{"reason", reason}})
        .value_or(0);
  };
  const double full = rejected("queue_full");
  const bool many = full > 0.01 * requests && full > 0;
  findings.Add(
      many ? Verdict::kWarn : Verdict::kFine, "traffic", requests,
      " requests since the start; turned away because the queue was full: ",
      full, ", too late: ", rejected("expired"),
      ", given up by the caller: ", rejected("cancelled"),
      many ? ": add servers, send larger batches, or raise --max_queue_tokens"
           : "");
  const auto warn_if_any = [&](const char* metric,
                               const MetricsPage::Labels& labels,
                               const char* topic, const char* text) {
    const double count = page.Sum(metric, labels).value_or(0);
    if (count > 0) findings.Add(Verdict::kWarn, topic, count, text);
  };
  for (const char* code : {"INTERNAL", "UNKNOWN", "DATA_LOSS"}) {
    const double count =
        page.Sum("moe_requests_total", {{"code", code}}).value_or(0);
    if (count > 0) {
      findings.Add(Verdict::kWarn, "errors", count, " requests ended with ",
                   code, ": a fault of the server; its log may say more");
    }
  }
  warn_if_any("moe_nonfinite_rows_total", {}, "input",
              " rows came with NaN or infinity and were answered with NaN: "
              "look at what sends them");
  warn_if_any("moe_refused_connections_total", {}, "connections",
              " were refused because there were too many: "
              "--max_connections, or clients that do not reuse theirs");
  warn_if_any("moe_tls_reloads_total", {{"result", "failed"}}, "certificate",
              " changes of the certificate files were no good, the old ones "
              "are still in use");
}

void DiagnoseCertificate(const MetricsPage& page, absl::Time now,
                         Findings& findings) {
  const auto expiry = page.Sum("moe_tls_certificate_expiry_timestamp_seconds");
  if (!expiry) return;
  const double days =
      (*expiry - absl::ToDoubleSeconds(now - absl::UnixEpoch())) / 86'400;
  findings.Add(days < 14 ? Verdict::kWarn : Verdict::kFine, "certificate",
               days < 0 ? std::string("has expired")
                        : absl::StrFormat("expires in %.0f days", days),
               days < 14 ? ": renew it; the server takes the new files by "
                           "itself"
                         : "");
}

void DiagnoseBalance(const MetricsPage& page, Findings& findings) {
  const MetricsPage::Sample* worst = nullptr;
  for (const auto& layer : page.All("moe_expert_load_balancedness")) {
    if (worst == nullptr || layer.value < worst->value) worst = &layer;
  }
  if (worst == nullptr || worst->value >= 1) return;
  const auto label = [&](const char* name) {
    const auto found = worst->labels.find(name);
    return found == worst->labels.end() ? "?" : found->second;
  };
  findings.Add(
      Verdict::kNote, "balance", "the least even layer is ", label("layer"),
      " of ", label("model"),
      absl::StrFormat(": its busiest expert has %.1f times the mean load",
                      1 / worst->value));
}

}  // namespace

std::vector<Finding> DiagnoseMetrics(const MetricsPage& page, absl::Time now) {
  Findings findings;
  if (page.All("moe_build_info").empty()) {
    findings.Add(Verdict::kWarn, "metrics",
                 "this page is not one of moe-server");
    return findings.Take();
  }
  DiagnoseBuild(page, findings);
  DiagnoseThreads(page, findings);
  DiagnoseMemory(page, findings);
  DiagnoseSpeed(page, findings);
  DiagnoseTraffic(page, findings);
  DiagnoseCertificate(page, now, findings);
  DiagnoseBalance(page, findings);
  return findings.Take();
}

std::vector<Finding> Diagnose(const DoctorOptions& options) {
  Findings findings;
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) {
    findings.Add(Verdict::kBad, "flags", connection.status().message());
    return findings.Take();
  }
  if (DiagnoseConnection(*connection, options.connection, findings)) {
    DiagnoseModels(*connection, findings);
  }
  const auto page = FetchMetrics(options.connection, options.metrics_address);
  if (page.ok()) {
    findings.Append(DiagnoseMetrics(*page, absl::Now()));
  } else {
    findings.Add(Verdict::kWarn, "metrics", page.status().message(),
                 "; --metrics=HOST:PORT says where they are");
  }
  return findings.Take();
}

bool PrintFindings(const std::vector<Finding>& findings) {
  const auto word = [](Verdict verdict) {
    switch (verdict) {
      case Verdict::kFine:
        return "ok  ";
      case Verdict::kNote:
        return "note";
      case Verdict::kWarn:
        return "WARN";
      case Verdict::kBad:
        return "BAD ";
    }
    return "";
  };
  bool good = true;
  for (const Finding& finding : findings) {
    absl::PrintF("%s  %-11s  %s\n", word(finding.verdict), finding.topic,
                 finding.text);
    good = good && finding.verdict != Verdict::kBad;
  }
  return good;
}

}  // namespace moe
