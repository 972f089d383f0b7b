#include "router/models/layer_tensors.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "experts/checkpoint/open_matrix.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

using Names = std::vector<absl::string_view>;

// All names, relative to the layer, that an entry of the table knows.
Names PatternsOf(const Family& family) {
  Names patterns;
  const auto add = [&patterns](absl::string_view names) {
    for (const absl::string_view name :
         absl::StrSplit(names, '|', absl::SkipEmpty())) {
      patterns.push_back(name);
    }
  };
  for (const Layouts* layouts : {&family.dense.layouts, &family.routed.layouts,
                                 &family.routed.shared.layouts}) {
    for (const Layout* layout : *layouts) {
      if (layout == nullptr) break;
      add(layout->gate.tensor);
      add(layout->up.tensor);
      add(layout->down.tensor);
    }
  }
  const RoutedBlock& routed = family.routed;
  for (const absl::string_view names :
       {routed.gate, routed.selection_bias, routed.latent_in, routed.latent_out,
        routed.shared.gate}) {
    add(names);
  }
  return patterns;
}

// "mlp" of "mlp.gate.weight".
absl::string_view RootOf(absl::string_view name) {
  return name.substr(0, name.find('.'));
}

// The modules that are FFNs wherever they are found. Those that mean other
// things in other families are FFNs in their own family only.
absl::flat_hash_set<absl::string_view> Roots(const Family& family) {
  absl::flat_hash_set<absl::string_view> roots;
  for (const Family& any : Families()) {
    for (const absl::string_view pattern : PatternsOf(any)) {
      roots.insert(RootOf(pattern));
    }
  }
  for (const absl::string_view shared : {"mixer", "output", "intermediate"}) {
    roots.erase(shared);
  }
  for (const absl::string_view pattern : PatternsOf(family)) {
    roots.insert(RootOf(pattern));
  }
  return roots;
}

class Readers {
 public:
  Readers(const Checkpoint& checkpoint, const LayerSpec& layer)
      : checkpoint_(checkpoint) {
    const int64_t identity_experts =
        layer.rule ? layer.rule->num_identity_experts : 0;
    Add(layer.experts, identity_experts);
    if (layer.shared_expert) Add(*layer.shared_expert, 0);
    for (const LinearSpec* linear : layer.Linears()) {
      AddMatrix(linear->weight);
      names_.insert(linear->bias);
    }
    names_.insert(layer.selection_bias);
  }

  bool Read(absl::string_view name) const {
    if (names_.contains(name)) return true;
    // Activations are not quantised here, or in another way.
    for (const absl::string_view scale :
         {".input_scale", ".input_global_scale", ".input_zero_point"}) {
      if (absl::ConsumeSuffix(&name, scale)) {
        return names_.contains(absl::StrCat(name, ".weight")) ||
               names_.contains(absl::StrCat(name, ".weight_packed"));
      }
    }
    return false;
  }

 private:
  void AddMatrix(absl::string_view name) {
    for (std::string& tensor : TensorsOf(checkpoint_, name)) {
      names_.insert(std::move(tensor));
    }
  }

  // Some writers save weights of identity experts, which have none.
  void Add(const ExpertSetSpec& set, int64_t identity_experts) {
    for (const ProjectionSpec& projection : set.projections) {
      if (projection.tensor.empty()) continue;
      const bool separate = projection.stacking == Stacking::kSeparate;
      const int64_t count = separate ? set.num_experts + identity_experts : 1;
      for (int64_t e = 0; e < count; ++e) {
        const std::string name = ExpertTensor(projection.tensor, e);
        AddMatrix(name);
        if (set.expert.has_bias) names_.insert(BiasName(name));
      }
    }
  }

  const Checkpoint& checkpoint_;
  absl::flat_hash_set<std::string> names_;
};

// The names that start with `prefix`.
absl::Span<const absl::string_view> NamesUnder(const Checkpoint& checkpoint,
                                               absl::string_view prefix) {
  const auto names = checkpoint.names();
  const auto* const first =
      std::lower_bound(names.begin(), names.end(), prefix);
  const auto* const last =
      std::find_if(first, names.end(), [prefix](absl::string_view name) {
        return !absl::StartsWith(name, prefix);
      });
  return absl::MakeConstSpan(first, last);
}

}  // namespace

absl::Status CheckAllRead(const Checkpoint& checkpoint, const Family& family,
                          absl::string_view prefix, const LayerSpec& layer) {
  const auto roots = Roots(family);
  const Names beside = absl::StrSplit(family.beside, '|', absl::SkipEmpty());
  const Readers readers(checkpoint, layer);
  for (const absl::string_view name : NamesUnder(checkpoint, prefix)) {
    const absl::string_view rest = absl::StripPrefix(name, prefix);
    if (!roots.contains(RootOf(rest)) || readers.Read(name)) continue;
    if (std::any_of(beside.begin(), beside.end(), [rest](auto start) {
          return absl::StartsWith(rest, start);
        })) {
      continue;
    }
    return absl::UnimplementedError(absl::StrCat(
        "tensor ", Quote(name), ": want none of that name in the FFN of a ",
        family.model_types,
        " layer with this config, got one that nothing "
        "would read"));
  }
  return absl::OkStatus();
}

absl::Status CheckNoFfn(const Checkpoint& checkpoint, const Family& family,
                        absl::string_view prefix) {
  for (const absl::string_view pattern : PatternsOf(family)) {
    // Whatever precision it is stored in.
    const absl::string_view stem =
        absl::StripSuffix(pattern.substr(0, pattern.find("{E}")), ".weight");
    const auto found = NamesUnder(checkpoint, absl::StrCat(prefix, stem));
    if (found.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quote(found.front()),
        ": want none, as the layer has no FFN by the config, got one"));
  }
  return absl::OkStatus();
}

}  // namespace moe
