// Every golden case with one thing changed at a time: a key of its config
// removed or given another value, a tensor of an FFN removed, renamed or added.
// Each is refused, or gives what the reference implementation would compute
// from it, here in double precision and by plain loops. Which keys the
// reference follows, and what it takes for absent ones, is told by
// class_defaults.json.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "experts/checkpoint/open_matrix.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/models/model.h"
#include "router/models/open_experts.h"
#include "tests/testing/models.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using Json = nlohmann::json;
using Vector = std::vector<double>;

constexpr int64_t kTokens = 3;

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const auto& entry :
       std::filesystem::directory_iterator(MOE_GOLDEN_DIR)) {
    if (entry.is_directory()) cases.push_back(entry.path().filename());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// ---- The reference ----------------------------------------------------------

struct Map {  // [out, in]
  std::vector<Vector> rows;
  Vector bias;

  Vector operator()(const Vector& x) const {
    Vector y;
    for (size_t r = 0; r < rows.size(); ++r) {
      double sum = bias.empty() ? 0.0 : bias[r];
      for (size_t c = 0; c < x.size(); ++c) sum += rows[r][c] * x[c];
      y.push_back(sum);
    }
    return y;
  }
};

Map MapOf(const StoredMatrix& stored, absl::Span<const float> bias) {
  Map map;
  std::vector<float> row(static_cast<size_t>(stored.cols));
  for (int64_t r = 0; r < stored.rows; ++r) {
    stored.Read(r, 0, absl::MakeSpan(row));
    map.rows.emplace_back(row.begin(), row.end());
  }
  map.bias.assign(bias.begin(), bias.end());
  return map;
}

double Activate(const ActivationSpec& spec, double z) {
  switch (spec.activation) {
    case Activation::kIdentity:
      return z;
    case Activation::kRelu:
      return std::max(z, 0.0);
    case Activation::kRelu2:
      return std::max(z, 0.0) * std::max(z, 0.0);
    case Activation::kGelu:
      return z / 2 * (1 + std::erf(z / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return z / 2 *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case Activation::kSilu:
      return z / (1 + std::exp(-static_cast<double>(spec.beta) * z));
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-z));
  }
  return 0;
}

struct ReferenceFfn {
  ExpertSpec spec;
  std::vector<std::vector<Map>> experts;  // [expert][projection]

  Vector Run(size_t expert, const Vector& x) const {
    const std::vector<Map>& maps = experts[expert];
    const ActivationSpec& act = spec.activation;
    const double limit = act.limit;
    Vector h = maps[1](x);
    const Vector gate = spec.gated ? maps[0](x) : Vector();
    for (size_t i = 0; i < h.size(); ++i) {
      if (!spec.gated) {
        h[i] = Activate(act, h[i]);
        continue;
      }
      const double up = std::min(std::max(h[i], -limit), limit) +
                        static_cast<double>(act.up_offset);
      h[i] = Activate(act, std::min(gate[i], limit)) * up;
    }
    return maps[2](h);
  }
};

ReferenceFfn FfnOf(const Checkpoint& checkpoint, const ExpertSetSpec& set) {
  ReferenceFfn ffn;
  ffn.spec = set.expert;
  const auto experts = OpenExperts(checkpoint, set);
  MOE_CHECK(experts.ok());
  for (const StoredExpert& expert : *experts) {
    std::vector<Map> maps;
    for (size_t p = 0; p < kNumProjections; ++p) {
      maps.push_back(p == 0 && !set.expert.gated
                         ? Map()
                         : MapOf(expert.weights[p], expert.biases[p]));
    }
    ffn.experts.push_back(std::move(maps));
  }
  return ffn;
}

Map LinearOf(const Checkpoint& checkpoint, const LinearSpec& spec) {
  const auto weight = OpenMatrix(checkpoint, spec.weight, spec.out, spec.in);
  MOE_CHECK(weight.ok());
  std::vector<float> bias;
  if (!spec.bias.empty()) bias = *ReadVector(checkpoint, spec.bias, spec.out);
  return MapOf(*weight, bias);
}

struct ReferenceLayer {
  int index = 0;
  std::optional<RoutingRule> rule;
  Map gate;
  Vector selection_bias;
  std::optional<Map> latent_in;
  std::optional<Map> latent_out;
  ReferenceFfn experts;
  std::optional<ReferenceFfn> shared;
  std::optional<Map> shared_gate;

  std::vector<std::pair<size_t, double>> Route(const Vector& x) const;
  Vector Run(const Vector& x) const;
};

void Keep(const Vector& values, size_t count, std::vector<size_t>& order) {
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(count);
}

std::vector<size_t> Best(const Vector& values, size_t count) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Keep(values, count, order);
  return order;
}

// The weight of `pick` among logits close to the largest of `left`.
double SparseWeight(const Vector& z, const std::vector<bool>& left, size_t pick,
                    double epsilon) {
  double sum = 0;
  for (size_t e = 0; e < z.size(); ++e) {
    const double ratio = (z[pick] - z[e]) / std::max(std::fabs(z[e]), z[pick]);
    if (left[e] && !(ratio > 2 * epsilon)) sum += std::exp(z[e] - z[pick]);
  }
  return 1 / sum;
}

std::vector<std::pair<size_t, double>> ReferenceLayer::Route(
    const Vector& x) const {
  const Vector z = gate(x);
  const size_t n = z.size();
  const auto k = static_cast<size_t>(rule->top_k);
  std::vector<std::pair<size_t, double>> chosen;
  if (rule->score == ScoreFunction::kSparseMixer) {
    std::vector<bool> left(n, true);
    for (size_t j = 0; j < k; ++j) {
      size_t pick = n;
      for (size_t e = 0; e < n; ++e) {
        if (left[e] && (pick == n || z[e] > z[pick])) pick = e;
      }
      chosen.emplace_back(
          pick, SparseWeight(z, left, pick, rule->sparse_mixer_epsilon));
      left[pick] = false;
    }
    return chosen;
  }
  Vector score = z;
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double v : z) sum += std::exp(v - largest);
  for (double& v : score) {
    if (rule->score == ScoreFunction::kSoftmax) v = std::exp(v - largest) / sum;
    if (rule->score == ScoreFunction::kSigmoid) v = 1 / (1 + std::exp(-v));
  }
  Vector selection = score;
  for (size_t e = 0; e < selection_bias.size(); ++e) {
    selection[e] += selection_bias[e];
  }
  if (rule->num_groups > 1) {
    const auto groups = static_cast<size_t>(rule->num_groups);
    const size_t each = n / groups;
    Vector group_score;
    for (size_t g = 0; g < groups; ++g) {
      const auto first = selection.begin() + static_cast<int64_t>(g * each);
      Vector in(first, first + static_cast<int64_t>(each));
      std::sort(in.rbegin(), in.rend());
      group_score.push_back(
          rule->group_score == GroupScore::kMax ? in[0] : in[0] + in.at(1));
    }
    std::vector<bool> kept(groups, false);
    for (const size_t g :
         Best(group_score, static_cast<size_t>(rule->top_groups))) {
      kept[g] = true;
    }
    for (size_t e = 0; e < n; ++e) {
      if (!kept[e / each]) selection[e] = -INFINITY;
    }
  }
  for (const size_t e : Best(selection, k)) chosen.emplace_back(e, score[e]);
  double of_chosen = 0;
  for (const auto& [e, w] : chosen) of_chosen += std::exp(z[e] - largest);
  for (auto& [e, w] : chosen) {
    if (rule->weight == WeightSource::kSoftmaxOfChosen) {
      w = std::exp(z[e] - largest) / of_chosen;
    }
    if (rule->weight == WeightSource::kSigmoidOfChosen) {
      w = 1 / (1 + std::exp(-z[e]));
    }
  }
  double total = 0;
  double norm = 0;
  for (const auto& [e, w] : chosen) {
    total += w;
    norm += std::pow(std::fabs(w), static_cast<double>(rule->renorm_p));
  }
  for (auto& [e, w] : chosen) {
    if (rule->renormalize == Renormalize::kSum) {
      w /= std::max(total + static_cast<double>(rule->renorm_epsilon),
                    static_cast<double>(rule->renorm_min));
    }
    if (rule->renormalize == Renormalize::kPNorm) {
      w /= std::pow(norm, 1 / static_cast<double>(rule->renorm_p));
    }
    w *= static_cast<double>(rule->scale);
  }
  return chosen;
}

void AddScaled(double factor, const Vector& term, Vector& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * term[i];
}

Vector ReferenceLayer::Run(const Vector& x) const {
  if (!rule) return experts.Run(0, x);
  const Vector inner = latent_in ? (*latent_in)(x) : x;
  Vector mixed(inner.size(), 0.0);
  const auto num_experts = static_cast<size_t>(rule->num_ffn_experts());
  for (const auto& [e, w] : Route(x)) {
    if (e >= num_experts) {
      AddScaled(w, inner, mixed);
    } else if (rule->placement == WeightPlacement::kInput) {
      Vector weighted(inner.size(), 0.0);
      AddScaled(w, inner, weighted);
      AddScaled(1, experts.Run(e, weighted), mixed);
    } else {
      AddScaled(w, experts.Run(e, inner), mixed);
    }
  }
  Vector y = latent_out ? (*latent_out)(mixed) : mixed;
  if (shared) {
    const double factor =
        shared_gate ? 1 / (1 + std::exp(-(*shared_gate)(x)[0])) : 1.0;
    AddScaled(factor, shared->Run(0, x), y);
  }
  return y;
}

std::vector<ReferenceLayer> LayersOf(const Checkpoint& checkpoint) {
  std::vector<ReferenceLayer> layers;
  const auto models = DescribeModels(checkpoint);
  MOE_CHECK(models.ok());
  for (const ModelSpec& model : *models) {
    for (const LayerSpec& spec : model.layers) {
      ReferenceLayer layer;
      layer.index = spec.index;
      layer.rule = spec.rule;
      if (spec.rule) layer.gate = LinearOf(checkpoint, spec.gate);
      if (!spec.selection_bias.empty()) {
        const auto bias = *ReadVector(checkpoint, spec.selection_bias,
                                      spec.rule->num_experts);
        layer.selection_bias.assign(bias.begin(), bias.end());
      }
      if (spec.latent_in) {
        layer.latent_in = LinearOf(checkpoint, *spec.latent_in);
        layer.latent_out = LinearOf(checkpoint, *spec.latent_out);
      }
      layer.experts = FfnOf(checkpoint, spec.experts);
      if (spec.shared_expert) {
        layer.shared = FfnOf(checkpoint, *spec.shared_expert);
      }
      if (spec.shared_expert_gate) {
        layer.shared_gate = LinearOf(checkpoint, *spec.shared_expert_gate);
      }
      layers.push_back(std::move(layer));
    }
  }
  return layers;
}

// ---- What the reference makes of a value
// -------------------------------------

using Effect = std::function<bool(const Json& value, ReferenceLayer& layer)>;

bool SetActivation(const Json& value, ReferenceLayer& layer) {
  if (!value.is_string()) return false;
  const auto activation =
      ParseActivation(absl::StripPrefix(value.get<std::string>(), "gated-"));
  if (!activation.ok()) return false;
  layer.experts.spec.activation.activation = *activation;
  if (layer.shared) layer.shared->spec.activation.activation = *activation;
  return true;
}

Effect Rule(std::function<void(double value, RoutingRule& rule)> set) {
  return [set](const Json& value, ReferenceLayer& layer) {
    if (!layer.rule) return true;
    const Json& one = value.is_array() ? value[0] : value;
    if (one.is_boolean()) {
      set(one.get<bool>() ? 1 : 0, *layer.rule);
      return true;
    }
    if (!one.is_number()) return false;
    set(one.get<double>(), *layer.rule);
    return true;
  };
}

Effect Act(std::function<void(float value, ActivationSpec& act)> set) {
  return [set](const Json& value, ReferenceLayer& layer) {
    if (!value.is_number()) return false;
    set(value.get<float>(), layer.experts.spec.activation);
    return true;
  };
}

void SetGroups(double value, RoutingRule& rule) {
  rule.num_groups = std::max<int64_t>(static_cast<int64_t>(value), 1);
  if (rule.num_groups == 1) rule.top_groups = 1;
}

// By key; those of one family under its type.
const std::map<std::string, Effect>& Effects() {
  static const auto& effects = *new std::map<std::string, Effect>{
      {"hidden_act", SetActivation},
      {"hidden_activation", SetActivation},
      {"activation_function", SetActivation},
      {"activation", SetActivation},
      {"mlp_hidden_act", SetActivation},
      {"dense_act_fn", SetActivation},
      {"feed_forward_proj", SetActivation},
      {"ffn_config.ffn_act_fn.name", SetActivation},
      {"num_experts_per_tok",
       Rule([](double v, RoutingRule& r) { r.top_k = static_cast<int>(v); })},
      {"moe_topk",
       Rule([](double v, RoutingRule& r) { r.top_k = static_cast<int>(v); })},
      {"moe_k",
       Rule([](double v, RoutingRule& r) { r.top_k = static_cast<int>(v); })},
      {"ffn_config.moe_top_k",
       Rule([](double v, RoutingRule& r) { r.top_k = static_cast<int>(v); })},
      {"norm_topk_prob", Rule([](double v, RoutingRule& r) {
         r.renormalize = v != 0 ? Renormalize::kSum : Renormalize::kNone;
       })},
      {"routed_scaling_factor",
       Rule([](double v, RoutingRule& r) { r.scale = static_cast<float>(v); })},
      {"moe_token_dropout", Rule([](double v, RoutingRule& r) {
         r.scale = static_cast<float>(1 - v);
       })},
      {"n_group", Rule(SetGroups)},
      {"topk_group", Rule([](double v, RoutingRule& r) {
         r.top_groups = r.num_groups == 1 ? 1 : static_cast<int>(v);
       })},
      {"moe_norm_min", Rule([](double v, RoutingRule& r) {
         r.renorm_min = static_cast<float>(v);
       })},
      {"phimoe.router_jitter_noise", Rule([](double v, RoutingRule& r) {
         r.sparse_mixer_epsilon = static_cast<float>(v);
       })},
      {"ffn_config.moe_normalize_expert_weights",
       Rule([](double v, RoutingRule& r) {
         r.renormalize = Renormalize::kPNorm;
         r.renorm_p = static_cast<float>(v);
       })},
      {"swiglu_limit", Act([](float v, ActivationSpec& a) { a.limit = v; })},
      {"swiglu_alpha", Act([](float v, ActivationSpec& a) { a.beta = v; })},
  };
  return effects;
}

// How many layers a model has, of each side.
constexpr absl::string_view kLayerCounts[] = {
    "num_hidden_layers", "num_layers",     "n_layers",          "n_layer",
    "encoder_layers",    "decoder_layers", "num_decoder_layers"};

// ---- A case
// ------------------------------------------------------------------

struct LayerOutput {
  int index;
  std::vector<float> values;
};

class Case {
 public:
  explicit Case(const std::string& name)
      : parts_(GoldenParts(name)), opened_(parts_.Open()) {
    std::ifstream file(MOE_CLASS_DEFAULTS);
    const Json recorded = Json::parse(file);
    type_ = std::string(
        absl::StripSuffix(Text().value("model_type", std::string()), "_text"));
    const std::string of = type_ == "kimi_k2" ? "deepseek_v3" : type_;
    if (recorded.contains(of)) defaults_ = recorded[of];
    layers_ = LayersOf(*opened_);
    const auto outputs = Outputs(parts_.config);
    MOE_CHECK(outputs.ok());
    base_ = *outputs;
  }

  const Json& config() const { return parts_.config; }
  const Parts& parts() const { return parts_; }
  const std::string& type() const { return type_; }
  const std::vector<LayerOutput>& base() const { return base_; }

  // The object that describes the decoder.
  const Json& Text() const {
    return parts_.config.contains("text_config") ? parts_.config["text_config"]
                                                 : parts_.config;
  }

  // What the model computes with another config, or why it is refused.
  absl::StatusOr<std::vector<LayerOutput>> Outputs(const Json& config) {
    opened_.folder().Write("config.json", config.dump());
    MOE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                         Checkpoint::Open(opened_.folder().path()));
    return OutputsOf(checkpoint);
  }

  static absl::StatusOr<std::vector<LayerOutput>> OutputsOf(
      const Checkpoint& checkpoint) {
    Executor executor(1);
    ExpertWorkspace expert_workspace(&executor);
    LayerWorkspace workspace(&expert_workspace);
    MOE_ASSIGN_OR_RETURN(const std::vector<ModelSpec> specs,
                         DescribeModels(checkpoint));
    std::vector<LayerOutput> outputs;
    for (const ModelSpec& spec : specs) {
      MOE_ASSIGN_OR_RETURN(
          const std::unique_ptr<Model> model,
          LoadModel(checkpoint, spec,
                    {.weight_format = WeightFormat::kF32, .layers = {}},
                    executor, [](const LoadProgress&) {}));
      for (const ModelLayer& layer : model->layers()) {
        const auto x = RandomFloats(kTokens * spec.d_model, 2.0F, 3);
        std::vector<float> y(x.size());
        ForwardStats stats;
        MOE_RETURN_IF_ERROR(layer.ffn->Forward(
            ConstMatrix(x.data(), kTokens, spec.d_model), nullptr, workspace,
            Matrix(y.data(), kTokens, spec.d_model), stats));
        outputs.push_back({layer.index, std::move(y)});
      }
    }
    return outputs;
  }

  // As the reference has it for the layers of `outputs`, of which there may be
  // fewer than in the case. `layers` are parallel to base().
  static void ExpectReference(const std::vector<ReferenceLayer>& layers,
                              const std::vector<LayerOutput>& outputs) {
    size_t at = 0;
    for (const LayerOutput& output : outputs) {
      while (at < layers.size() && layers[at].index != output.index) ++at;
      ASSERT_LT(at, layers.size());
      const size_t width = output.values.size() / kTokens;
      const auto inputs =
          RandomFloats(static_cast<int64_t>(output.values.size()), 2.0F, 3);
      for (size_t t = 0; t < kTokens; ++t) {
        const auto from = static_cast<int64_t>(t * width);
        const auto to = static_cast<int64_t>((t + 1) * width);
        const Vector want =
            layers[at].Run(Vector(inputs.begin() + from, inputs.begin() + to));
        double largest = 0;
        for (const double v : want) largest = std::max(largest, std::fabs(v));
        for (size_t c = 0; c < width; ++c) {
          ASSERT_NEAR(output.values[t * width + c], want[c],
                      5e-5 * largest + 1e-6)
              << "layer " << output.index << " token " << t;
        }
      }
      ++at;
    }
  }

  // A config in which `path` has `value`, or nothing, is refused or computed as
  // the reference does. Counts which.
  void Check(const Json::json_pointer& path, const std::string& key,
             const std::optional<Json>& value) {
    Json config = parts_.config;
    if (value) {
      config[path] = *value;
    } else {
      config[path.parent_pointer()].erase(path.back());
    }
    const auto outputs = Outputs(config);
    if (!outputs.ok()) {
      EXPECT_NE(outputs.status().code(), absl::StatusCode::kInternal);
      ++refused;
      return;
    }
    std::vector<ReferenceLayer> layers = layers_;
    bool followed = false;
    const auto effect = Effects().find(key);
    const auto own = Effects().find(absl::StrCat(type_, ".", key));
    const bool grouped =
        type_ != "deepseek_v2" || (key != "n_group" && key != "topk_group");
    if (defaults_.contains(key) && grouped &&
        (effect != Effects().end() || own != Effects().end())) {
      const Effect& set = own != Effects().end() ? own->second : effect->second;
      followed = true;
      for (ReferenceLayer& layer : layers) {
        EXPECT_TRUE(set(value.value_or(defaults_[key]), layer));
      }
    }
    const bool counts =
        std::find(std::begin(kLayerCounts), std::end(kLayerCounts), key) !=
        std::end(kLayerCounts);
    if (!counts) {
      EXPECT_EQ(outputs->size(), base_.size());
    }
    if (followed) {
      ++changed;
      ExpectReference(layers, *outputs);
      return;
    }
    ++same;
    size_t at = 0;
    for (const LayerOutput& output : *outputs) {
      while (at < base_.size() && base_[at].index != output.index) ++at;
      // The reference, too, takes a layer that predicts further tokens for one
      // of the model's if it is counted among them.
      if (at == base_.size() && counts) break;
      ASSERT_LT(at, base_.size());
      EXPECT_EQ(output.values, base_[at++].values);
    }
  }

  int refused = 0;
  int same = 0;
  int changed = 0;

 private:
  Parts parts_;
  TestCheckpoint opened_;
  std::string type_;
  Json defaults_ = Json::object();
  std::vector<ReferenceLayer> layers_;
  std::vector<LayerOutput> base_;
};

// Other values of the same kind.
std::vector<Json> OtherValues(const Json& value) {
  std::vector<Json> others;
  if (value.is_boolean()) {
    others = {!value.get<bool>()};
  } else if (value.is_number_integer()) {
    const auto v = value.get<int64_t>();
    others = {v + 1, 2 * v, 0, 1, int64_t{1} << 62};
    if (v > 0) others.emplace_back(v - 1);
  } else if (value.is_number_float()) {
    const auto v = value.get<double>();
    others = {2 * v, v / 2, 1.0, 0.0};
  } else if (value.is_string()) {
    others = {"softmax",  "sigmoid",    "greedy",     "group_limited_greedy",
              "noaux_tc", "gelu",       "relu",       "silu",
              "gelu_new", "gated-silu", "gated-relu", "constant"};
  } else if (value.is_array() && !value.empty()) {
    others = {Json::array()};
    if (value[0].is_number_integer()) {
      for (const int64_t step : {-1, 1}) {
        Json moved = value;
        for (Json& item : moved) item = item.get<int64_t>() + step;
        others.push_back(std::move(moved));
      }
    }
  }
  others.erase(std::remove(others.begin(), others.end(), value), others.end());
  return others;
}

class SweepTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SweepTest, EachKeyIsFollowedAsTheReferenceDoesOrRefused) {
  Case one(GetParam());
  // Every effect is applied to what the unchanged case computes.
  Case::ExpectReference(LayersOf(*one.parts().Open()), one.base());
  const std::string text =
      one.config().contains("text_config") ? "/text_config" : "";
  const std::function<void(const Json&, const std::string&, const std::string&)>
      sweep = [&](const Json& object, const std::string& at,
                  const std::string& prefix) {
        for (const auto& [name, value] : object.items()) {
          const std::string key = prefix + name;
          const Json::json_pointer path(absl::StrCat(at, "/", name));
          SCOPED_TRACE(path.to_string());
          {
            SCOPED_TRACE("removed");
            one.Check(path, key, std::nullopt);
          }
          for (const Json& other : OtherValues(value)) {
            SCOPED_TRACE(other.dump());
            one.Check(path, key, other);
          }
          if (name == "ffn_config" || name == "ffn_act_fn") {
            sweep(value, path.to_string(), key + ".");
          }
        }
      };
  sweep(one.Text(), text, "");
  if (!text.empty()) sweep(one.config(), "", "top.");
  std::printf("%s: %d refused, %d the same, %d as the reference has it\n",
              GetParam().c_str(), one.refused, one.same, one.changed);
  EXPECT_GT(one.refused, 3);
}

// The tensors that the layers of a case are made of.
std::vector<std::string> FfnTensors(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  const auto add = [&](absl::string_view name) {
    for (const std::string& tensor : TensorsOf(checkpoint, name)) {
      if (checkpoint.Contains(tensor)) names.push_back(tensor);
    }
  };
  const auto add_set = [&](const ExpertSetSpec& set) {
    for (const ProjectionSpec& projection : set.projections) {
      if (projection.tensor.empty()) continue;
      const bool separate = projection.stacking == Stacking::kSeparate;
      for (const int64_t e : {int64_t{0}, set.num_experts - 1}) {
        const std::string name = ExpertTensor(projection.tensor, e);
        add(name);
        if (set.expert.has_bias) names.push_back(BiasName(name));
        if (!separate || set.num_experts == 1) break;
      }
    }
  };
  const auto models = DescribeModels(checkpoint);
  MOE_CHECK(models.ok());
  for (const ModelSpec& model : *models) {
    for (const LayerSpec& layer : model.layers) {
      add_set(layer.experts);
      if (layer.shared_expert) add_set(*layer.shared_expert);
      for (const LinearSpec* linear : layer.Linears()) {
        add(linear->weight);
        if (!linear->bias.empty()) names.push_back(linear->bias);
      }
      if (!layer.selection_bias.empty()) names.push_back(layer.selection_bias);
    }
  }
  return names;
}

TEST_P(SweepTest, EachTensorThatIsMissingOrTooManyIsRefusedByName) {
  const Parts parts = GoldenParts(GetParam());
  const std::vector<std::string> names = FfnTensors(*parts.Open());
  ASSERT_GE(names.size(), 3U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const std::string stem = name.substr(0, name.rfind('.'));
    const auto names_it = ::testing::HasSubstr(stem);
    Parts without = parts;
    without.Remove(name);
    const auto missing = Case::OutputsOf(*without.Open());
    ASSERT_FALSE(missing.ok());
    EXPECT_THAT(std::string(missing.status().message()), names_it);

    Parts renamed = parts;
    renamed.Tensor(name).name = name + "_x";
    const auto other = Case::OutputsOf(*renamed.Open());
    ASSERT_FALSE(other.ok());
    EXPECT_THAT(std::string(other.status().message()), names_it);

    Parts added = parts;
    added.tensors.push_back(added.Tensor(name));
    added.tensors.back().name = stem + ".extra";
    const auto more = Case::OutputsOf(*added.Open());
    ASSERT_FALSE(more.ok());
    EXPECT_THAT(std::string(more.status().message()),
                ::testing::HasSubstr(stem + ".extra"));
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, SweepTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace moe
