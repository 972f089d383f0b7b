#include "router/models/model_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/quantization.h"
#include "experts/checkpoint/text.h"
#include "router/models/evidence.h"
#include "router/models/family.h"
#include "router/models/family_config.h"
#include "router/models/layer_kinds.h"
#include "router/models/layer_tensors.h"
#include "router/models/open_experts.h"

namespace moe {
namespace {

// Several times the largest of any model. Products of two such numbers, 1024
// experts and as many layers stay below 2^63.
constexpr int64_t kMaxWidth = int64_t{1} << 19;
constexpr int64_t kMaxLayers = 1024;

// Applies one entry of the table to one checkpoint.
class Describer {
 public:
  Describer(const Checkpoint& checkpoint, const FamilyConfig& config,
            const Family& family)
      : checkpoint_(checkpoint),
        config_(config),
        family_(family),
        layer_pattern_(ChooseLayerPattern()),
        last_layer_(LastLayer(layer_pattern_)) {}

  // Whether there is a tensor of some layer.
  bool AnyLayer() const { return AnyLayer(layer_pattern_); }

  absl::StatusOr<ModelSpec> Describe() {
    ModelSpec model;
    model.part = std::string(family_.part);
    MOE_RETURN_IF_ERROR(config_.Check());
    MOE_ASSIGN_OR_RETURN(model.d_model, Width(family_.d_model));
    d_model_ = model.d_model;
    MOE_ASSIGN_OR_RETURN(model.num_layers, NumLayers());
    for (int64_t index = 0; index < model.num_layers; ++index) {
      layer_ = index;
      MOE_ASSIGN_OR_RETURN(const LayerKind kind,
                           family_.kind(config_, index, model.num_layers));
      if (kind == LayerKind::kNoFfn) {
        MOE_RETURN_IF_ERROR(CheckNoFfn(checkpoint_, family_, InLayer("")));
        continue;
      }
      if (index > last_layer_) {
        return config_.Error(
            family_.num_layers,
            absl::StrCat("at most ", last_layer_ + 1,
                         ", the layers that the checkpoint has tensors of"),
            absl::StrCat(model.num_layers));
      }
      LayerSpec layer;
      layer.index = static_cast<int>(index);
      layer.d_model = d_model_;
      MOE_RETURN_IF_ERROR(kind == LayerKind::kRouted ? DescribeRouted(layer)
                                                     : DescribeDense(layer));
      MOE_RETURN_IF_ERROR(CheckStatedRules(config_, layer));
      MOE_RETURN_IF_ERROR(
          CheckAllRead(checkpoint_, family_, InLayer(""), layer));
      model.layers.push_back(std::move(layer));
    }
    if (model.layers.empty()) {
      return absl::NotFoundError("config.json: no layer has an FFN");
    }
    return model;
  }

 private:
  // ---- Names ----

  // The highest number of a layer that there is a tensor of, or -1.
  int64_t LastLayer(absl::string_view pattern) const {
    const absl::string_view stem = pattern.substr(0, pattern.find("{L}"));
    int64_t last = -1;
    for (absl::string_view name : checkpoint_.names()) {
      if (!absl::ConsumePrefix(&name, stem)) continue;
      int64_t layer = 0;
      if (absl::SimpleAtoi(name.substr(0, name.find('.')), &layer)) {
        last = std::max(last, layer);
      }
    }
    return last;
  }
  bool AnyLayer(absl::string_view pattern) const {
    return LastLayer(pattern) >= 0;
  }

  absl::string_view ChooseLayerPattern() const {
    const std::vector<absl::string_view> patterns =
        absl::StrSplit(family_.layer, '|');
    const auto found = std::find_if(
        patterns.begin(), patterns.end(),
        [this](absl::string_view pattern) { return AnyLayer(pattern); });
    return found != patterns.end() ? *found : patterns.front();
  }

  // A name of the table, in this layer.
  std::string InLayer(absl::string_view name) const {
    return absl::StrCat(
        absl::StrReplaceAll(layer_pattern_, {{"{L}", absl::StrCat(layer_)}}),
        name);
  }

  // The first of the names "a|b" that the checkpoint has.
  std::string ChooseTensor(absl::string_view names) const {
    const std::vector<absl::string_view> choices = absl::StrSplit(names, '|');
    for (const absl::string_view choice : choices) {
      if (HasMatrix(checkpoint_, InLayer(choice))) return InLayer(choice);
    }
    return InLayer(choices.front());
  }

  std::string NameOf(const TensorPattern& pattern, int64_t expert) const {
    return ExpertTensor(InLayer(pattern.tensor), expert);
  }

  // Whether the stack of down_proj, if there is a plain one, has this shape:
  // some layouts have the same names.
  bool FitsShape(const TensorPattern& down, int64_t d_model,
                 int64_t d_ff) const {
    if (down.stacking != Stacking::kStacked) return true;
    const TensorInfo* tensor = checkpoint_.Find(NameOf(down, 0));
    if (tensor == nullptr || tensor->shape.size() != 3) return true;
    const bool turned = down.order == StoredOrder::kInOut;
    return tensor->shape[1] == (turned ? d_ff : d_model) &&
           tensor->shape[2] == (turned ? d_model : d_ff);
  }

  const Layout& ChooseLayout(const Layouts& layouts, int64_t d_model,
                             int64_t d_ff) const {
    const Layout* named = nullptr;
    for (const Layout* layout : layouts) {
      if (layout == nullptr) break;
      const bool there =
          HasMatrix(checkpoint_, NameOf(layout->up, 0)) ||
          (layout->gated() && HasMatrix(checkpoint_, NameOf(layout->gate, 0)));
      if (!there) continue;
      if (FitsShape(layout->down, d_model, d_ff)) return *layout;
      if (named == nullptr) named = layout;
    }
    return named != nullptr ? *named : *layouts.front();
  }

  // ---- Numbers ----
  //
  // Everything that follows is sized by them.

  // One that is below what any file holds, whatever the products of several.
  absl::StatusOr<int64_t> Width(absl::string_view key, int64_t min = 1) const {
    MOE_ASSIGN_OR_RETURN(const int64_t width, config_.Int(key, layer_, min));
    MOE_RETURN_IF_ERROR(CheckWidth(key, width));
    return width;
  }
  absl::Status CheckWidth(absl::string_view key, int64_t width) const {
    if (width <= kMaxWidth) return absl::OkStatus();
    return config_.Error(key, absl::StrCat("at most ", kMaxWidth),
                         absl::StrCat(width));
  }

  absl::StatusOr<int64_t> NumLayers() const {
    int64_t listed = 0;
    if (!family_.layer_list.empty()) {
      MOE_ASSIGN_OR_RETURN(const std::vector<std::string> list,
                           config_.Strings(family_.layer_list));
      listed = static_cast<int64_t>(list.size());
    }
    const bool named = listed == 0 || config_.Has(family_.num_layers);
    MOE_ASSIGN_OR_RETURN(const int64_t layers,
                         named ? config_.Int(family_.num_layers)
                               : absl::StatusOr<int64_t>(listed));
    if (layers > kMaxLayers && last_layer_ >= kMaxLayers) {
      return config_.Error(family_.num_layers,
                           absl::StrCat("at most ", kMaxLayers),
                           absl::StrCat(layers));
    }
    if (listed > 0 && listed != layers) {
      return config_.Error(
          family_.num_layers,
          absl::StrCat(listed, ", as ", family_.layer_list, " has"),
          absl::StrCat(layers));
    }
    return layers;
  }

  // ---- Experts ----

  absl::Status DescribeActivation(ExpertSpec& expert) const {
    MOE_ASSIGN_OR_RETURN(
        const std::string name,
        family_.activation.empty()
            ? absl::StatusOr<std::string>(family_.constant_activation)
            : config_.String(family_.activation));
    const absl::StatusOr<Activation> activation = ParseActivation(name);
    if (!activation.ok()) {
      return absl::UnimplementedError(
          config_
              .Error(family_.activation,
                     absl::StrCat("one of ", KnownActivations()), Quote(name))
              .message());
    }
    expert.activation.activation = *activation;
    return family_.adjust == nullptr ? absl::OkStatus()
                                     : family_.adjust(config_, expert);
  }

  absl::StatusOr<ExpertSetSpec> DescribeExperts(const Layouts& layouts,
                                                int64_t num_experts,
                                                int64_t d_model, int64_t d_ff,
                                                const Flag& bias) const {
    const Layout& layout = ChooseLayout(layouts, d_model, d_ff);
    ExpertSetSpec set;
    set.num_experts = num_experts;
    set.expert.d_model = d_model;
    set.expert.d_ff = d_ff;
    set.expert.gated = layout.gated();
    MOE_ASSIGN_OR_RETURN(set.expert.has_bias, config_.Bool(bias));
    MOE_RETURN_IF_ERROR(DescribeActivation(set.expert));
    const TensorPattern* patterns[] = {&layout.gate, &layout.up, &layout.down};
    for (size_t p = 0; p < kNumProjections; ++p) {
      const TensorPattern& pattern = *patterns[p];
      if (pattern.tensor.empty()) continue;
      set.projections[p] = {.tensor = InLayer(pattern.tensor),
                            .stacking = pattern.stacking,
                            .order = pattern.order,
                            .part = pattern.part};
      const std::string unexpected = BiasName(NameOf(pattern, 0));
      if (!set.expert.has_bias && checkpoint_.Contains(unexpected)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", Quote(unexpected), ": want none",
            bias.key.empty() ? "" : absl::StrCat(" without ", bias.key),
            ", got one"));
      }
    }
    return set;
  }

  absl::Status DescribeDense(LayerSpec& layer) const {
    const DenseBlock& dense = family_.dense;
    if (dense.layouts.front() == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("config.json: layer ", layer_,
                       " is dense: not supported for ", family_.model_types));
    }
    int64_t d_ff = dense.d_ff_factor * d_model_;
    const bool named = !dense.d_ff.empty() && config_.Has(dense.d_ff);
    if (dense.d_ff_factor == 0 || named) {
      MOE_ASSIGN_OR_RETURN(d_ff, Width(dense.d_ff));
    }
    MOE_ASSIGN_OR_RETURN(layer.experts,
                         DescribeExperts(dense.layouts, /*num_experts=*/1,
                                         d_model_, d_ff, dense.bias));
    return absl::OkStatus();
  }

  // ---- Routed layers ----

  // A linear map, with a bias if asked for.
  LinearSpec DescribeLinear(absl::string_view names, int64_t out, int64_t in,
                            bool bias) const {
    LinearSpec linear;
    linear.weight = ChooseTensor(names);
    if (bias) linear.bias = BiasName(linear.weight);
    linear.out = out;
    linear.in = in;
    return linear;
  }

  absl::StatusOr<RoutingRule> DescribeRule() const {
    const RoutedBlock& block = family_.routed;
    RoutingRule rule = block.rule;
    MOE_ASSIGN_OR_RETURN(rule.num_experts, Width(block.num_experts));
    if (!block.num_identity_experts.empty()) {
      MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> identity_experts,
                           config_.OptionalInt(block.num_identity_experts));
      rule.num_identity_experts = identity_experts.value_or(0);
      MOE_RETURN_IF_ERROR(
          CheckWidth(block.num_identity_experts, rule.num_identity_experts));
      rule.num_experts += rule.num_identity_experts;
    }
    if (!block.top_k.empty()) {
      MOE_ASSIGN_OR_RETURN(rule.top_k, config_.Int(block.top_k, layer_));
    }
    MOE_ASSIGN_OR_RETURN(const bool renormalize,
                         config_.Bool(block.renormalize));
    if (!renormalize) rule.renormalize = Renormalize::kNone;
    if (!block.scale.empty()) {
      MOE_ASSIGN_OR_RETURN(const double scale, config_.Double(block.scale));
      rule.scale = static_cast<float>(scale);
    }
    if (!block.num_groups.empty()) {
      MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> groups,
                           config_.OptionalInt(block.num_groups));
      MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> top_groups,
                           config_.OptionalInt(block.top_groups));
      // 0 stands for no grouping, too.
      rule.num_groups = std::max<int64_t>(groups.value_or(1), 1);
      rule.top_groups = rule.num_groups == 1 ? 1 : top_groups.value_or(1);
    }
    if (block.adjust != nullptr) {
      MOE_RETURN_IF_ERROR(block.adjust(config_, rule));
    }
    MOE_RETURN_IF_ERROR(WithKey(rule.Validate()));
    return rule;
  }

  // An error of RoutingRule::Validate, with the config's key for the field.
  absl::Status WithKey(const absl::Status& status) const {
    const RoutedBlock& block = family_.routed;
    const std::pair<absl::string_view, absl::string_view> keys[] = {
        {"num_experts: want ", block.num_experts},
        {"top_k: want ", block.top_k},
        {"num_groups: want ", block.num_groups},
        {"top_groups: want ", block.top_groups},
    };
    absl::string_view message = status.message();
    for (const auto& [field, key] : keys) {
      if (key.empty() || !absl::ConsumePrefix(&message, field)) continue;
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(message, absl::MaxSplits(", got ", 1));
      return config_.Error(key, parts.first, parts.second);
    }
    return status;
  }

  // Some writers put weights of identity experts, which have none, at the end
  // of a stack.
  void SkipIdentityExperts(const RoutingRule& rule, ExpertSetSpec& set) const {
    for (ProjectionSpec& projection : set.projections) {
      if (projection.stacking != Stacking::kStacked) continue;
      const TensorInfo* tensor = checkpoint_.Find(projection.tensor);
      if (tensor != nullptr && !tensor->shape.empty() &&
          tensor->shape[0] == rule.num_experts) {
        projection.unused_experts = rule.num_identity_experts;
      }
    }
  }

  // Refuses files with more experts than the config says; fewer are missed when
  // they are opened.
  absl::Status CheckNumExperts(const ExpertSetSpec& experts,
                               int64_t num_identity_experts) const {
    const std::string beyond = ExpertTensor(
        experts.projections[static_cast<size_t>(Projection::kUp)].tensor,
        experts.num_experts + num_identity_experts);
    const bool separate =
        experts.projections[static_cast<size_t>(Projection::kUp)].stacking ==
        Stacking::kSeparate;
    if (!separate || !HasMatrix(checkpoint_, beyond)) return absl::OkStatus();
    return config_.Error(
        family_.routed.num_experts,
        absl::StrCat("all experts that the checkpoint has, such as ",
                     Quote(beyond)),
        absl::StrCat(experts.num_experts));
  }

  absl::Status DescribeShared(LayerSpec& layer) const {
    const SharedBlock& shared = family_.routed.shared;
    if (shared.layouts.front() == nullptr) return absl::OkStatus();
    int64_t count = 1;
    if (!shared.count.empty()) {
      MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> stated,
                           config_.OptionalInt(shared.count, layer_));
      count = stated.value_or(0);
      MOE_RETURN_IF_ERROR(CheckWidth(shared.count, count));
    }
    MOE_ASSIGN_OR_RETURN(const int64_t d_ff, Width(shared.d_ff, /*min=*/0));
    if (count == 0 || d_ff == 0) return absl::OkStatus();
    MOE_RETURN_IF_ERROR(CheckWidth(shared.d_ff, count * d_ff));
    MOE_ASSIGN_OR_RETURN(
        layer.shared_expert,
        DescribeExperts(shared.layouts, /*num_experts=*/1, d_model_,
                        count * d_ff, family_.routed.bias));
    if (!shared.gate.empty()) {
      layer.shared_expert_gate =
          DescribeLinear(shared.gate, 1, d_model_, /*bias=*/false);
    }
    return absl::OkStatus();
  }

  absl::Status DescribeRouted(LayerSpec& layer) const {
    const RoutedBlock& block = family_.routed;
    MOE_ASSIGN_OR_RETURN(layer.rule, DescribeRule());
    MOE_ASSIGN_OR_RETURN(const bool gate_bias, config_.Bool(block.gate_bias));
    layer.gate = DescribeLinear(block.gate, layer.rule->num_experts, d_model_,
                                gate_bias);
    MOE_ASSIGN_OR_RETURN(const bool selection_bias,
                         config_.Bool(block.has_selection_bias));
    if (selection_bias && !block.selection_bias.empty()) {
      layer.selection_bias = ChooseTensor(block.selection_bias);
    }

    int64_t width = d_model_;
    if (!block.latent.empty()) {
      MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> stated,
                           config_.OptionalInt(block.latent));
      const int64_t latent = stated.value_or(0);
      MOE_RETURN_IF_ERROR(CheckWidth(block.latent, latent));
      if (latent > 0) {
        MOE_ASSIGN_OR_RETURN(const bool bias, config_.Bool(block.bias));
        layer.latent_in =
            DescribeLinear(block.latent_in, latent, d_model_, bias);
        layer.latent_out =
            DescribeLinear(block.latent_out, d_model_, latent, bias);
        width = latent;
      }
    }
    MOE_ASSIGN_OR_RETURN(const int64_t d_ff, Width(block.d_ff));
    MOE_ASSIGN_OR_RETURN(
        layer.experts,
        DescribeExperts(block.layouts, layer.rule->num_ffn_experts(), width,
                        d_ff, block.bias));
    MOE_RETURN_IF_ERROR(
        CheckNumExperts(layer.experts, layer.rule->num_identity_experts));
    return DescribeShared(layer);
  }

  const Checkpoint& checkpoint_;
  const FamilyConfig& config_;
  const Family& family_;
  const absl::string_view layer_pattern_;
  const int64_t last_layer_;
  int64_t d_model_ = 0;
  int64_t layer_ = 0;
};

}  // namespace

std::string BiasName(absl::string_view weight) {
  if (absl::ConsumeSuffix(&weight, ".weight")) {
    return absl::StrCat(weight, ".bias");
  }
  return absl::StrCat(weight, "_bias");
}

std::string ExpertTensor(absl::string_view pattern, int64_t expert) {
  return absl::StrReplaceAll(pattern, {{"{E}", absl::StrCat(expert)}});
}

std::vector<const LinearSpec*> LayerSpec::Linears() const {
  std::vector<const LinearSpec*> linears;
  if (rule) linears.push_back(&gate);
  for (const std::optional<LinearSpec>* linear :
       {&latent_in, &latent_out, &shared_expert_gate}) {
    if (linear->has_value()) linears.push_back(&**linear);
  }
  return linears;
}

int64_t LayerSpec::parameters() const {
  int64_t sum = experts.parameters();
  if (shared_expert) sum += shared_expert->parameters();
  if (!selection_bias.empty()) sum += rule->num_experts;
  for (const LinearSpec* linear : Linears()) sum += linear->parameters();
  return sum;
}

int64_t ModelSpec::parameters() const {
  int64_t sum = 0;
  for (const LayerSpec& layer : layers) sum += layer.parameters();
  return sum;
}

absl::StatusOr<std::vector<ModelSpec>> DescribeModels(
    const Checkpoint& checkpoint) {
  // Vision-language models describe their decoder in an object of its own.
  const Config& top = checkpoint.config();
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> text,
                       top.OptionalSection("text_config"));
  const Config& config = text && text->Has("model_type") ? *text : top;
  MOE_ASSIGN_OR_RETURN(const std::vector<const Family*> families,
                       ChooseFamilies(top, config));
  MOE_RETURN_IF_ERROR(CheckQuantization(top));
  MOE_ASSIGN_OR_RETURN(const std::string named, config.String("model_type"));
  const FamilyConfig family_config(config, families.front()->keys);
  std::vector<Describer> sides;
  for (const Family* family : families) {
    Describer side(checkpoint, family_config, *family);
    if (families.size() == 1 || side.AnyLayer()) sides.push_back(side);
  }
  if (sides.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "tensors: want some named ", families.front()->layer, ", found none"));
  }
  std::vector<ModelSpec> models;
  for (Describer& side : sides) {
    MOE_ASSIGN_OR_RETURN(ModelSpec model, side.Describe());
    model.family = std::string(absl::StripSuffix(named, "_text"));
    models.push_back(std::move(model));
  }
  return models;
}

}  // namespace moe
