#include "router/models/evidence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

// ---- Types and classes ------------------------------------------------------

using Names = std::vector<absl::string_view>;

Names Alternatives(absl::string_view names) {
  return absl::StrSplit(names, '|', absl::SkipEmpty());
}

bool Contains(const Names& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<const Family*> FamiliesOfType(absl::string_view model_type) {
  std::vector<const Family*> found;
  for (const Family& family : Families()) {
    if (Contains(Alternatives(family.model_types), model_type)) {
      found.push_back(&family);
    }
  }
  return found;
}

std::string SupportedModelTypes() {
  Names types;
  for (const Family& family : Families()) {
    for (const absl::string_view type : Alternatives(family.model_types)) {
      types.push_back(type);
    }
  }
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  return absl::StrJoin(types, ", ");
}

// "Qwen3MoeForCausalLM" is one of Qwen3Moe's, but none of Qwen3's.
bool IsClassOf(absl::string_view name, absl::string_view stem) {
  if (!absl::StartsWithIgnoreCase(name, stem)) return false;
  name.remove_prefix(stem.size());
  absl::ConsumePrefix(&name, "Text");
  if (absl::StartsWith(name, "For")) return true;
  for (const absl::string_view end :
       {"Model", "LMHeadModel", "EncoderModel", "WithLMHeadModel",
        "DoubleHeadsModel", "PreTrainedModel", "Config"}) {
    if (name == end) return true;
  }
  return false;
}

bool IsClassOf(absl::string_view name, const Family& family) {
  const Names stems = Alternatives(family.classes);
  return std::any_of(
      stems.begin(), stems.end(),
      [name](absl::string_view stem) { return IsClassOf(name, stem); });
}

// A class that the config names, and the key that does.
struct NamedClass {
  std::string name;
  std::string key;
};

absl::StatusOr<std::vector<NamedClass>> NamedClasses(const Config& config) {
  std::vector<NamedClass> classes;
  MOE_ASSIGN_OR_RETURN(const std::vector<std::string> architectures,
                       config.Strings("architectures"));
  classes.reserve(architectures.size());
  for (const std::string& name : architectures) {
    classes.push_back({name, "architectures"});
  }
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> map,
                       config.OptionalSection("auto_map"));
  if (!map) return classes;
  for (const std::string& key : map->Keys()) {
    if (key != "AutoConfig" && !absl::StartsWith(key, "AutoModel")) continue;
    MOE_ASSIGN_OR_RETURN(const std::optional<std::string> path,
                         map->OptionalString(key));
    if (!path) continue;
    // "modeling_deepseek.DeepseekV3ForCausalLM"
    const std::vector<std::string> parts = absl::StrSplit(*path, '.');
    classes.push_back({parts.back(), absl::StrCat("auto_map.", key)});
  }
  return classes;
}

std::string ClassesOf(const std::vector<const Family*>& families) {
  Names classes;
  for (const Family* family : families) {
    for (const absl::string_view stem : Alternatives(family->classes)) {
      if (!Contains(classes, stem)) classes.push_back(stem);
    }
  }
  return absl::StrCat("a class of ", absl::StrJoin(classes, " or "));
}

absl::Status OtherClass(const Config& config, const NamedClass& named,
                        const std::vector<const Family*>& families,
                        absl::string_view model_type) {
  return absl::UnimplementedError(
      config
          .Error(named.key,
                 absl::StrCat(ClassesOf(families), ", as model_type ",
                              Quote(model_type), " has"),
                 Quote(named.name))
          .message());
}

// What the top of config.json says where the model is described in an object of
// its own: it may be of a type and class that hold the model, but not of
// another one in the table.
absl::Status CheckHolder(const Config& top, const Config& config,
                         const std::vector<const Family*>& families) {
  MOE_ASSIGN_OR_RETURN(const std::string model_type,
                       config.String("model_type"));
  const auto is_chosen = [&](const Family* family) {
    return std::find(families.begin(), families.end(), family) !=
           families.end();
  };
  MOE_ASSIGN_OR_RETURN(const std::string holder,
                       top.StringOr("model_type", ""));
  const std::vector<const Family*> of_holder =
      FamiliesOfType(absl::StripSuffix(holder, "_text"));
  if (!of_holder.empty() &&
      std::none_of(of_holder.begin(), of_holder.end(), is_chosen)) {
    return absl::UnimplementedError(
        top.Error("model_type",
                  absl::StrCat("what holds a ", Quote(model_type)),
                  Quote(holder))
            .message());
  }
  MOE_ASSIGN_OR_RETURN(const std::vector<NamedClass> classes,
                       NamedClasses(top));
  for (const NamedClass& named : classes) {
    for (const Family& family : Families()) {
      if (!IsClassOf(named.name, family) || is_chosen(&family)) continue;
      const bool also_chosen = std::any_of(
          families.begin(), families.end(),
          [&](const Family* chosen) { return IsClassOf(named.name, *chosen); });
      if (!also_chosen) return OtherClass(top, named, families, model_type);
    }
  }
  return absl::OkStatus();
}

// ---- Rules ------------------------------------------------------------------

absl::string_view ScoreName(const RoutingRule& rule) {
  switch (rule.score) {
    case ScoreFunction::kSigmoid:
      return "sigmoid";
    case ScoreFunction::kSqrtSoftplus:
      return "sqrtsoftplus";
    case ScoreFunction::kSparseMixer:
      return "sparsemixer";
    case ScoreFunction::kSoftmax:
      return "softmax";
    case ScoreFunction::kLogits:
      return rule.weight == WeightSource::kSigmoidOfChosen ? "sigmoid"
                                                           : "softmax";
  }
  return "";
}

// What a layer does, in the words of configs.
struct Facts {
  const RoutingRule* rule = nullptr;  // null: dense
  const ActivationSpec* activation = nullptr;
  bool shared = false;
  bool selection_bias = false;
  bool latent = false;

  bool renormalizes() const {
    return rule->renormalize != Renormalize::kNone ||
           rule->weight == WeightSource::kSoftmaxOfChosen;
  }
};

// What a key can state.
enum class Stated : uint8_t {
  kScore,        // the name of a score function
  kRenormalize,  // whether weights are divided by their sum
  kScale,
  kGroups,
  kTopGroups,
  kMethod,         // of the choice
  kShared,         // a number or width of shared experts
  kSelectionBias,  // whether there is one
  kLatent,         // the width
  kWeightOnInput,
  kIdentityExperts,
  kLimit,  // of the activation
  kAlpha,
};

struct StatedKey {
  absl::string_view key;
  Stated stated;
};

// Those of published configs and of the classes that read them.
constexpr StatedKey kStatedKeys[] = {
    {"scoring_func", Stated::kScore},
    {"score_func", Stated::kScore},
    {"score_function", Stated::kScore},
    {"moe_score_func", Stated::kScore},
    {"moe_router_score_function", Stated::kScore},
    {"router_score_function", Stated::kScore},
    {"moe_router_activation_func", Stated::kScore},
    {"norm_topk_prob", Stated::kRenormalize},
    {"norm_topk_prob_always", Stated::kRenormalize},
    {"moe_renormalize", Stated::kRenormalize},
    {"renormalize", Stated::kRenormalize},
    {"route_norm", Stated::kRenormalize},
    {"routed_scaling_factor", Stated::kScale},
    {"moe_routed_scaling_factor", Stated::kScale},
    {"router_scaling_factor", Stated::kScale},
    {"moe_router_scaling_factor", Stated::kScale},
    {"moe_router_topk_scaling_factor", Stated::kScale},
    {"route_scale", Stated::kScale},
    {"n_group", Stated::kGroups},
    {"num_expert_group", Stated::kGroups},
    {"num_expert_groups", Stated::kGroups},
    {"topk_group", Stated::kTopGroups},
    {"num_limited_groups", Stated::kTopGroups},
    {"topk_method", Stated::kMethod},
    {"n_shared_experts", Stated::kShared},
    {"num_shared_experts", Stated::kShared},
    {"num_shared_expert", Stated::kShared},
    {"moe_num_shared_experts", Stated::kShared},
    {"shared_intermediate_size", Stated::kShared},
    {"shared_expert_intermediate_size", Stated::kShared},
    {"moe_shared_expert_intermediate_size", Stated::kShared},
    {"use_routing_bias", Stated::kSelectionBias},
    {"use_expert_bias", Stated::kSelectionBias},
    {"moe_use_aux_free", Stated::kSelectionBias},
    {"moe_router_enable_expert_bias", Stated::kSelectionBias},
    {"moe_latent_size", Stated::kLatent},
    {"apply_router_weight_on_input", Stated::kWeightOnInput},
    {"moe_apply_router_weight_on_input", Stated::kWeightOnInput},
    {"zero_expert_num", Stated::kIdentityExperts},
    {"swiglu_limit", Stated::kLimit},
    {"swiglu_alpha", Stated::kAlpha},
};

std::string BoolText(bool value) { return value ? "true" : "false"; }

// Whether a key's number is `want`; `neutral` ones are fine where there is none
// of the thing.
absl::StatusOr<bool> IsNumber(const Config& config, const std::string& key,
                              double want) {
  // A list has a number per layer; the same for all that are published.
  if (config.IsList(key)) {
    MOE_ASSIGN_OR_RETURN(const std::vector<int64_t> values, config.Ints(key));
    return std::all_of(values.begin(), values.end(), [want](int64_t value) {
      return static_cast<double>(value) == want;
    });
  }
  MOE_ASSIGN_OR_RETURN(const double value, config.Double(key));
  return static_cast<float>(value) == static_cast<float>(want);
}

// What the key should have said; nothing if it said it.
absl::StatusOr<std::optional<std::string>> Disagreement(const Config& config,
                                                        const StatedKey& stated,
                                                        const Facts& facts) {
  const std::string key(stated.key);
  const std::optional<std::string> agrees;
  const auto number =
      [&](double want) -> absl::StatusOr<std::optional<std::string>> {
    MOE_ASSIGN_OR_RETURN(const bool is, IsNumber(config, key, want));
    return is ? std::nullopt : std::optional<std::string>(absl::StrCat(want));
  };
  const auto boolean =
      [&](bool want) -> absl::StatusOr<std::optional<std::string>> {
    MOE_ASSIGN_OR_RETURN(const bool got, config.Bool(key));
    return got == want ? std::nullopt
                       : std::optional<std::string>(BoolText(want));
  };
  // 0 groups and 1 group both stand for none.
  const auto groups =
      [&](int64_t want) -> absl::StatusOr<std::optional<std::string>> {
    MOE_ASSIGN_OR_RETURN(const int64_t got, config.Int(key));
    return std::max<int64_t>(got, 1) == want
               ? std::nullopt
               : std::optional<std::string>(absl::StrCat(want));
  };

  if (stated.stated == Stated::kLimit) {
    const float limit = facts.activation->limit;
    if (std::isinf(limit)) return std::optional<std::string>("nothing");
    return number(limit);
  }
  if (stated.stated == Stated::kAlpha) return number(facts.activation->beta);
  if (facts.rule == nullptr) return agrees;
  const RoutingRule& rule = *facts.rule;
  switch (stated.stated) {
    case Stated::kScore: {
      MOE_ASSIGN_OR_RETURN(const std::string got, config.String(key));
      const absl::string_view want = ScoreName(rule);
      return absl::EqualsIgnoreCase(got, want)
                 ? agrees
                 : std::optional<std::string>(Quote(want));
    }
    case Stated::kRenormalize:
      return rule.top_k == 1 ? agrees : boolean(facts.renormalizes());
    case Stated::kScale:
      return number(rule.scale);
    case Stated::kGroups:
      return groups(rule.num_groups);
    case Stated::kTopGroups:
      return groups(rule.top_groups);
    case Stated::kMethod: {
      MOE_ASSIGN_OR_RETURN(const std::string got, config.String(key));
      const absl::string_view want = facts.selection_bias ? "noaux_tc"
                                     : rule.num_groups > 1
                                         ? "group_limited_greedy"
                                         : "greedy";
      return got == want ? agrees : std::optional<std::string>(Quote(want));
    }
    case Stated::kShared: {
      MOE_ASSIGN_OR_RETURN(const bool none, IsNumber(config, key, 0));
      if (none != facts.shared) return agrees;
      return std::optional<std::string>(facts.shared ? "a number >= 1" : "0");
    }
    case Stated::kSelectionBias:
      return boolean(facts.selection_bias);
    case Stated::kLatent:
      return facts.latent ? agrees : number(0);
    case Stated::kWeightOnInput:
      return boolean(rule.placement == WeightPlacement::kInput);
    case Stated::kIdentityExperts:
      return number(static_cast<double>(rule.num_identity_experts));
    default:
      return agrees;
  }
}

}  // namespace

absl::StatusOr<std::vector<const Family*>> ChooseFamilies(
    const Config& top, const Config& config) {
  MOE_ASSIGN_OR_RETURN(const std::string named, config.String("model_type"));
  const absl::string_view model_type = absl::StripSuffix(named, "_text");
  std::vector<const Family*> families = FamiliesOfType(model_type);
  if (families.empty()) {
    return absl::UnimplementedError(
        config
            .Error("model_type", absl::StrCat("one of ", SupportedModelTypes()),
                   Quote(named))
            .message());
  }
  MOE_ASSIGN_OR_RETURN(const std::vector<NamedClass> classes,
                       NamedClasses(config));
  for (const NamedClass& name : classes) {
    std::vector<const Family*> left;
    for (const Family* family : families) {
      if (IsClassOf(name.name, *family)) left.push_back(family);
    }
    if (left.empty()) return OtherClass(config, name, families, named);
    families = std::move(left);
  }
  // Where no class tells families of one type apart, it is the first one's.
  const absl::string_view first = families.front()->classes;
  families.erase(std::remove_if(families.begin(), families.end(),
                                [first](const Family* family) {
                                  return family->classes != first;
                                }),
                 families.end());
  if (&top != &config) {
    MOE_RETURN_IF_ERROR(CheckHolder(top, config, families));
  }
  return families;
}

absl::Status CheckStatedRules(const FamilyConfig& config,
                              const LayerSpec& layer) {
  Facts facts;
  facts.rule = layer.rule ? &*layer.rule : nullptr;
  facts.activation = &layer.experts.expert.activation;
  facts.shared = layer.shared_expert.has_value();
  facts.selection_bias = !layer.selection_bias.empty();
  facts.latent = layer.latent_in.has_value();
  for (const StatedKey& stated : kStatedKeys) {
    if (config.IsListed(stated.key) || !config.config().Has(stated.key)) {
      continue;
    }
    MOE_ASSIGN_OR_RETURN(const std::optional<std::string> want,
                         Disagreement(config.config(), stated, facts));
    if (!want) continue;
    return absl::UnimplementedError(
        config.config()
            .Error(stated.key,
                   absl::StrCat(*want, ", which is what is computed"),
                   config.config().Text(stated.key))
            .message());
  }
  return absl::OkStatus();
}

}  // namespace moe
