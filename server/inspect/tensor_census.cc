#include "server/inspect/tensor_census.h"

#include <algorithm>
#include <initializer_list>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace moe {
namespace {

// What quantisation puts beside or in place of a matrix; the first ones hold no
// parameters of their own.
constexpr absl::string_view kBesides[] = {
    "_scale_inv", "_scale", "_scales", ".scale",      ".scales", ".qzeros",
    ".g_idx",     "_g_idx", "_shape",  "_zero_point", "_bias",   ".bias"};
constexpr absl::string_view kInstead[] = {"_packed", ".qweight", "_blocks",
                                          ".blocks"};

// "X" for "X.weight" and for all that stands for it or beside it.
absl::string_view StemOf(absl::string_view name) {
  for (const absl::string_view suffix : kBesides) {
    if (absl::ConsumeSuffix(&name, suffix)) break;
  }
  for (const absl::string_view suffix : kInstead) {
    if (absl::ConsumeSuffix(&name, suffix)) break;
  }
  absl::ConsumeSuffix(&name, ".weight");
  return name;
}

using Stems = absl::flat_hash_set<std::string>;

void AddStem(absl::string_view tensor, Stems& stems) {
  stems.insert(std::string(StemOf(tensor)));
}

void AddStems(const ExpertSetSpec& set, Stems& stems) {
  for (const ProjectionSpec& projection : set.projections) {
    if (projection.tensor.empty()) continue;
    const bool separate = projection.stacking == Stacking::kSeparate;
    for (int64_t e = 0; e < (separate ? set.num_experts : 1); ++e) {
      AddStem(ExpertTensor(projection.tensor, e), stems);
    }
  }
}

Stems StemsOf(absl::Span<const ModelSpec> models) {
  Stems stems;
  for (const ModelSpec& model : models) {
    for (const LayerSpec& layer : model.layers) {
      AddStems(layer.experts, stems);
      if (layer.shared_expert) AddStems(*layer.shared_expert, stems);
      for (const LinearSpec* linear : layer.Linears()) {
        AddStem(linear->weight, stems);
      }
      if (!layer.selection_bias.empty()) AddStem(layer.selection_bias, stems);
    }
  }
  return stems;
}

bool HasAny(absl::string_view name,
            std::initializer_list<absl::string_view> words) {
  return std::any_of(words.begin(), words.end(), [name](auto word) {
    return absl::StrContains(name, word);
  });
}

// The number after "layers" or the like, or -1.
int64_t LayerOf(absl::string_view name) {
  bool next = false;
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    int64_t layer = 0;
    if (next && absl::SimpleAtoi(part, &layer)) return layer;
    next = part == "layers" || part == "layer" || part == "h" ||
           part == "blocks" || part == "block";
  }
  return -1;
}

// By name: there is nothing else to go by, and nothing hangs on it.
absl::string_view ReasonFor(absl::string_view name, int64_t num_layers) {
  if (HasAny(name, {"visual", "vision", "image", "audio", "multi_modal"})) {
    return "encoders of images or sound";
  }
  if (absl::StartsWith(name, "mtp.") || HasAny(name, {".mtp."}) ||
      LayerOf(name) >= num_layers) {
    return "layers that predict further tokens";
  }
  if (HasAny(name, {".mlps."})) return "second FFNs of a layer";
  const std::string lower = absl::AsciiStrToLower(name);
  if (HasAny(lower, {"norm", "ln_", ".ln"})) return "norms";
  if (HasAny(lower, {"attn", "attention", "rotary"})) return "attention";
  if (HasAny(lower, {"mixer", "mamba", "conv", "ssm"})) {
    return "attention or state space";
  }
  if (HasAny(lower, {"embed", "wte", "wpe", "shared.weight", "lm_head", "cls.",
                     "pooler", "position_ids", "head"})) {
    return "embeddings and heads";
  }
  return "others";
}

std::string PatternOf(absl::string_view name) {
  std::string pattern;
  for (const char c : name) {
    const bool digit = absl::ascii_isdigit(static_cast<unsigned char>(c));
    const char before = pattern.empty() ? '.' : pattern.back();
    if (digit && (before == '.' || before == '_')) {
      pattern += '#';
    } else if (!digit || before != '#') {
      pattern += c;  // digits that are part of a word, as in fc1, stay
    }
  }
  return pattern;
}

// Learned parameters behind a tensor.
int64_t ParametersIn(const TensorInfo& tensor) {
  constexpr absl::string_view kNone[] = {
      "_scale_inv", "_scale", "_scales",     ".scale", ".scales",
      ".qzeros",    "_shape", "_zero_point", "g_idx",  "inv_freq"};
  const absl::string_view name = tensor.name;
  for (const absl::string_view suffix : kNone) {
    if (absl::EndsWith(name, suffix)) return 0;
  }
  if (absl::EndsWith(name, "_packed") || absl::EndsWith(name, ".qweight")) {
    return 8 * tensor.elements();
  }
  if (absl::EndsWith(name, "blocks")) return 2 * tensor.elements();
  switch (tensor.dtype.value_or(DType::kU8)) {
    case DType::kF64:
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      // Those with four dimensions are masks that old files hold.
      return tensor.shape.size() == 4 && absl::EndsWith(name, ".bias")
                 ? 0
                 : tensor.elements();
    default:
      return 0;
  }
}

}  // namespace

TensorCensus TakeCensus(const Checkpoint& checkpoint,
                        absl::Span<const ModelSpec> models) {
  const Stems stems = StemsOf(models);
  int64_t num_layers = 0;
  for (const ModelSpec& model : models) {
    num_layers = std::max(num_layers, model.num_layers);
  }
  TensorCensus census;
  for (const TensorInfo* tensor : checkpoint.tensors()) {
    const auto bytes = static_cast<int64_t>(tensor->bytes.size());
    if (stems.contains(StemOf(tensor->name))) {
      ++census.recognised;
      census.recognised_bytes += bytes;
      continue;
    }
    census.skipped_parameters += ParametersIn(*tensor);
    const absl::string_view reason = ReasonFor(tensor->name, num_layers);
    auto group = std::find_if(
        census.skipped.begin(), census.skipped.end(),
        [reason](const SkippedTensors& g) { return g.reason == reason; });
    if (group == census.skipped.end()) {
      group = census.skipped.insert(group, {std::string(reason), 0, 0, {}});
    }
    ++group->count;
    group->bytes += bytes;
    std::string pattern = PatternOf(tensor->name);
    auto& patterns = group->patterns;
    if (std::find(patterns.begin(), patterns.end(), pattern) ==
        patterns.end()) {
      patterns.push_back(std::move(pattern));
    }
  }
  return census;
}

}  // namespace moe
