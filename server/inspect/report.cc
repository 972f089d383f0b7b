#include "server/inspect/report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "experts/base/status_macros.h"
#include "experts/base/weight_format.h"
#include "experts/checkpoint/checkpoint.h"
#include "router/models/figures.h"
#include "router/models/model_spec.h"
#include "server/inspect/tensor_census.h"
#include "server/inspect/words.h"

namespace moe {
namespace {

// Those that a server can be asked for.
constexpr WeightFormat kFormats[] = {WeightFormat::kAuto, WeightFormat::kF32,
                                     WeightFormat::kBF16, WeightFormat::kInt8,
                                     WeightFormat::kInt4};

// Layers of a model that differ in nothing but their number.
struct LayerGroup {
  std::vector<int> indices;
  const LayerSpec* layer;
};

// What makes two layers alike.
std::string Signature(const LayerSpec& layer) {
  const ExpertSpec& expert = layer.experts.expert;
  std::string text =
      absl::StrCat(layer.experts.num_experts, "/", expert.d_model, "/",
                   expert.d_ff, "/", ExpertInWords(expert), "/",
                   layer.shared_expert ? layer.shared_expert->expert.d_ff : 0);
  if (layer.rule) {
    absl::StrAppend(&text, "/", layer.rule->num_experts, "/",
                    RoutingInWords(layer));
  }
  return text;
}

std::vector<LayerGroup> GroupLayers(const ModelSpec& model) {
  std::vector<LayerGroup> groups;
  for (const LayerSpec& layer : model.layers) {
    auto group = std::find_if(
        groups.begin(), groups.end(), [&](const LayerGroup& other) {
          return Signature(*other.layer) == Signature(layer);
        });
    if (group == groups.end()) {
      group = groups.insert(group, {.indices = {}, .layer = &layer});
    }
    group->indices.push_back(layer.index);
  }
  return groups;
}

void AppendGroup(const LayerGroup& group, std::string& out) {
  const LayerSpec& layer = *group.layer;
  const ExpertSpec& expert = layer.experts.expert;
  absl::StrAppendFormat(&out, "\nlayers %s: %s\n", RangesText(group.indices),
                        layer.rule ? "routed" : "dense");
  if (layer.rule) {
    absl::StrAppendFormat(&out, "  experts     %d of d_ff %d, top_k %d\n",
                          layer.rule->num_experts, expert.d_ff,
                          layer.rule->top_k);
    absl::StrAppendFormat(&out, "  routing     %s\n", RoutingInWords(layer));
  } else {
    absl::StrAppendFormat(&out, "  d_ff        %d\n", expert.d_ff);
  }
  absl::StrAppendFormat(&out, "  %s%s\n",
                        layer.rule ? "expert      " : "FFN         ",
                        ExpertInWords(expert));
  if (layer.latent_in) {
    absl::StrAppendFormat(&out, "  latent      experts work on vectors of %d\n",
                          expert.d_model);
  }
  if (layer.shared_expert) {
    absl::StrAppendFormat(
        &out, "  shared      d_ff %d%s\n", layer.shared_expert->expert.d_ff,
        layer.shared_expert_gate ? ", gated by a sigmoid" : "");
  }
  const int64_t matrix = expert.d_model * expert.d_ff;
  absl::StrAppendFormat(
      &out,
      "  parameters  %s per layer; %s per %s: %d matrices of %d x %d "
      "(%s: %d, %s)\n",
      ThousandsText(layer.parameters()), ThousandsText(expert.parameters()),
      layer.rule ? "expert" : "FFN", expert.gated ? 3 : 2, expert.d_ff,
      expert.d_model, expert.gated ? "classic" : "gated", expert.gated ? 2 : 3,
      ThousandsText((expert.gated ? 2 : 3) * matrix));
}

absl::Status AppendModel(const Checkpoint& checkpoint, const ModelSpec& model,
                         int64_t all_parameters, std::string& out) {
  absl::StrAppendFormat(&out, "%s%s: %d FFN layers of %d, d_model %d\n",
                        model.family,
                        model.part.empty() ? "" : absl::StrCat(" ", model.part),
                        model.layers.size(), model.num_layers, model.d_model);
  for (const LayerGroup& group : GroupLayers(model)) AppendGroup(group, out);

  absl::StrAppendFormat(&out,
                        "\nFFN parameters: %s, %.1f%% of the model's %s\n",
                        ThousandsText(model.parameters()),
                        100.0 * static_cast<double>(model.parameters()) /
                            static_cast<double>(all_parameters),
                        ThousandsText(all_parameters));

  absl::StrAppendFormat(&out, "\n%-8s %12s %18s\n", "format", "memory",
                        "read per token");
  TokenCost token;
  for (const WeightFormat format : kFormats) {
    int64_t memory = 0;
    token = {};
    for (const LayerSpec& layer : model.layers) {
      MOE_ASSIGN_OR_RETURN(const int64_t bytes,
                           LayerBytes(checkpoint, layer, format));
      MOE_ASSIGN_OR_RETURN(const TokenCost cost,
                           TokenCostOf(checkpoint, layer, format));
      memory += bytes;
      token += cost;
    }
    absl::StrAppendFormat(
        &out, "%-8s %12s %18s%s\n", std::string(WeightFormatName(format)),
        BytesText(memory), BytesText(token.bytes),
        format == WeightFormat::kAuto ? "   (as stored)" : "");
  }
  absl::StrAppendFormat(
      &out, "A token meets %s parameters in %s FLOPs (all layers).\n",
      ThousandsText(token.parameters), ThousandsText(token.flops));
  absl::StrAppendFormat(
      &out,
      "A classic FFN of d_ff 4 x d_model = %d equals a gated one of 8/3 x "
      "d_model, rounded to %d.\n",
      ConventionalWidth(model.d_model), EqualGatedWidth(model.d_model));
  return absl::OkStatus();
}

void AppendCensus(const TensorCensus& census, std::string& out) {
  constexpr size_t kShown = 3;  // patterns per reason
  absl::StrAppendFormat(&out, "\ntensors: %d recognised (%s)\n",
                        census.recognised, BytesText(census.recognised_bytes));
  for (const SkippedTensors& group : census.skipped) {
    const size_t shown = std::min(kShown, group.patterns.size());
    absl::StrAppendFormat(
        &out, "  skipped %d (%s), %s: %s%s\n", group.count,
        BytesText(group.bytes), group.reason,
        absl::StrJoin(group.patterns.begin(),
                      group.patterns.begin() + static_cast<int64_t>(shown),
                      ", "),
        shown < group.patterns.size() ? ", ..." : "");
  }
}

}  // namespace

absl::StatusOr<std::string> InspectReport(const std::string& folder) {
  MOE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  MOE_ASSIGN_OR_RETURN(const std::vector<ModelSpec> models,
                       DescribeModels(checkpoint));
  const TensorCensus census = TakeCensus(checkpoint, models);
  int64_t all_parameters = census.skipped_parameters;
  for (const ModelSpec& model : models) all_parameters += model.parameters();
  std::string out;
  for (const ModelSpec& model : models) {
    if (!out.empty()) out += "\n";
    MOE_RETURN_IF_ERROR(AppendModel(checkpoint, model, all_parameters, out));
  }
  AppendCensus(census, out);
  return out;
}

}  // namespace moe
