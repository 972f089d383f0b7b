#include "server/client/expert_loads.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"
#include "moe/v1/placement.pb.h"
#include "server/client/http_get.h"
#include "server/common/index_set.h"
#include "server/common/read_file.h"

namespace moe {
namespace {

constexpr char kMetric[] = "moe_expert_tokens_total";
constexpr size_t kMaxFileBytes = size_t{64} << 20;

using ByLayer = std::map<std::pair<std::string, int>, std::vector<double>>;

std::vector<LayerLoads> Take(ByLayer&& by_layer) {
  std::vector<LayerLoads> loads;
  for (auto& [key, tokens] : by_layer) {
    loads.push_back(
        {.model = key.first, .layer = key.second, .tokens = std::move(tokens)});
  }
  return loads;
}

// Adds one series, which has the labels of kMetric.
absl::Status Add(const MetricsPage::Sample& sample, ByLayer& by_layer) {
  const auto label = [&](const char* name) {
    const auto found = sample.labels.find(name);
    return found == sample.labels.end() ? std::string() : found->second;
  };
  const auto index = [&](const char* name) -> absl::StatusOr<int> {
    int value = 0;
    if (!absl::SimpleAtoi(label(name), &value) || value < 0 ||
        value > IndexSet::kMaxIndex) {
      return absl::InvalidArgumentError(
          absl::StrCat(kMetric, ": want a number up to ", IndexSet::kMaxIndex,
                       " as label \"", name, "\", got ", Quote(label(name))));
    }
    return value;
  };
  MOE_ASSIGN_OR_RETURN(const int layer, index("layer"));
  MOE_ASSIGN_OR_RETURN(const int expert, index("expert"));
  if (!std::isfinite(sample.value) || sample.value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kMetric, ": want 0 or more, got ", sample.value));
  }
  std::vector<double>& tokens = by_layer[{label("model"), layer}];
  if (tokens.size() <= static_cast<size_t>(expert)) {
    tokens.resize(static_cast<size_t>(expert) + 1);
  }
  tokens[static_cast<size_t>(expert)] += sample.value;
  return absl::OkStatus();
}

absl::Status Parse(const std::string& json,
                   google::protobuf::Message* message) {
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(json, message);
  if (parsed.ok()) return absl::OkStatus();
  const std::string text = parsed.ToString();
  return absl::InvalidArgumentError(Quote(text.substr(0, text.find('\n'))));
}

// A field of a JSON object; null if it is none.
const google::protobuf::Value& Field(const google::protobuf::Value& value,
                                     const char* name) {
  const auto& fields = value.struct_value().fields();
  const auto found = fields.find(name);
  return found == fields.end() ? google::protobuf::Value::default_instance()
                               : found->second;
}

}  // namespace

absl::StatusOr<std::vector<LayerLoads>> LoadsOfPage(const MetricsPage& page) {
  ByLayer by_layer;
  for (const MetricsPage::Sample& sample : page.All(kMetric)) {
    MOE_RETURN_IF_ERROR(Add(sample, by_layer));
  }
  if (by_layer.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--metrics: want a page with ", kMetric,
                     ", got none; does the server run with "
                     "--expert_metrics=full, and a model with experts?"));
  }
  return Take(std::move(by_layer));
}

absl::StatusOr<std::vector<LayerLoads>> LoadsOfPrometheus(
    absl::string_view url, absl::Duration window) {
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prometheus: want http://HOST:PORT, got ", Quote(url)));
  }
  if (window < absl::Seconds(1) || window > absl::Hours(24 * 366)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--window: want 1s to a year, got ", absl::FormatDuration(window)));
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  // Shards count what fronts have counted: of a layer that has fronts, only
  // they are asked. Fronts are known by their shards.
  const std::string tokens = absl::StrCat("increase(", kMetric, "[",
                                          absl::ToInt64Seconds(window), "s])");
  const std::string query =
      absl::StrCat("sum by (model, layer, expert) (", tokens,
                   " and on (job, instance) moe_shard_up) or ",
                   "sum by (model, layer, expert) (", tokens, ")");
  MOE_ASSIGN_OR_RETURN(
      const std::string body,
      HttpGet("--prometheus",
              {.address = std::string(rest.substr(0, slash)),
               .path = absl::StrCat(absl::StripSuffix(rest.substr(slash), "/"),
                                    "/api/v1/query?query=", UrlEncode(query)),
               .password = ""}));
  google::protobuf::Value response;
  const absl::Status parsed = Parse(body, &response);
  const google::protobuf::Value& result =
      Field(Field(response, "data"), "result");
  if (!parsed.ok() || Field(response, "status").string_value() != "success" ||
      !result.has_list_value()) {
    return absl::InternalError(absl::StrCat(
        "--prometheus: ", rest, " does not answer as a Prometheus does"));
  }
  ByLayer by_layer;
  for (const google::protobuf::Value& series : result.list_value().values()) {
    MetricsPage::Sample sample;
    for (const auto& [name, value] :
         Field(series, "metric").struct_value().fields()) {
      sample.labels[name] = value.string_value();
    }
    // [time, "value"]
    const auto& value = Field(series, "value").list_value().values();
    if (value.size() != 2 ||
        !absl::SimpleAtod(value[1].string_value(), &sample.value)) {
      return absl::InternalError("--prometheus: want numbers, got none");
    }
    MOE_RETURN_IF_ERROR(Add(sample, by_layer));
  }
  if (by_layer.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--prometheus: want ", kMetric, " within ",
                     absl::FormatDuration(window), ", got none"));
  }
  return Take(std::move(by_layer));
}

absl::StatusOr<std::vector<LayerLoads>> LoadsOfFile(const std::string& path) {
  MOE_ASSIGN_OR_RETURN(const std::string text,
                       ReadSmallFile("--loads", path, kMaxFileBytes));
  v1::ExpertLoads file;
  const absl::Status parsed = Parse(text, &file);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--loads: want the JSON of a moe.v1.ExpertLoads: ", parsed.message()));
  }
  ByLayer by_layer;
  for (int i = 0; i < file.layers_size(); ++i) {
    const v1::LayerLoads& layer = file.layers(i);
    const std::string where = absl::StrCat("--loads: layers[", i, "]");
    if (layer.tokens().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ".tokens: want one for each expert, got none"));
    }
    for (const double tokens : layer.tokens()) {
      if (!std::isfinite(tokens) || tokens < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ".tokens: want 0 or more, got ", tokens));
      }
    }
    const bool added =
        by_layer
            .try_emplace({layer.model(), layer.layer()}, layer.tokens().begin(),
                         layer.tokens().end())
            .second;
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": want each layer once, got layer ",
                       layer.layer(), " of ", Quote(layer.model()), " twice"));
    }
  }
  if (by_layer.empty()) {
    return absl::InvalidArgumentError("--loads: layers: want one, got none");
  }
  return Take(std::move(by_layer));
}

}  // namespace moe
