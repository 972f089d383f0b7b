#include "server/inspect/words.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace moe {
namespace {

std::string ScoreInWords(const RoutingRule& rule) {
  switch (rule.score) {
    case ScoreFunction::kLogits:
      return "z";
    case ScoreFunction::kSoftmax:
      return "softmax(z)";
    case ScoreFunction::kSigmoid:
      return "sigmoid(z)";
    case ScoreFunction::kSqrtSoftplus:
      return "sqrt(softplus(z))";
    case ScoreFunction::kSparseMixer:
      return "z";
  }
  return "?";
}

std::string WeightInWords(const RoutingRule& rule) {
  if (rule.score == ScoreFunction::kSparseMixer) {
    return absl::StrFormat(
        "a softmax over the z within %g of each choice, relatively",
        2 * static_cast<double>(rule.sparse_mixer_epsilon));
  }
  switch (rule.weight) {
    case WeightSource::kScore:
      return ScoreInWords(rule);
    case WeightSource::kSoftmaxOfChosen:
      return "softmax over the chosen z";
    case WeightSource::kSigmoidOfChosen:
      return "sigmoid(z)";
  }
  return "?";
}

}  // namespace

std::string RoutingInWords(const LayerSpec& layer) {
  const RoutingRule& rule = *layer.rule;
  std::string text = rule.top_k == 1
                         ? "the largest of "
                         : absl::StrCat("the ", rule.top_k, " largest of ");
  absl::StrAppend(&text, ScoreInWords(rule),
                  layer.selection_bias.empty() ? "" : " + bias");
  if (rule.num_groups > 1) {
    absl::StrAppend(
        &text, " in the ", rule.top_groups, " best of ", rule.num_groups,
        " groups (by their ",
        rule.group_score == GroupScore::kMax ? "best)" : "two best, summed)");
  }
  absl::StrAppend(&text, "; weight ", WeightInWords(rule));
  if (rule.renormalize == Renormalize::kSum) {
    absl::StrAppend(&text, ", divided by the sum of the chosen");
    if (rule.renorm_min > 0) {
      absl::StrAppendFormat(&text, " (at least %g)",
                            static_cast<double>(rule.renorm_min));
    }
  } else if (rule.renormalize == Renormalize::kPNorm) {
    absl::StrAppendFormat(&text, ", divided by the %g-norm of the chosen",
                          static_cast<double>(rule.renorm_p));
  }
  if (rule.scale != 1.0F) {
    absl::StrAppendFormat(&text, ", times %g", static_cast<double>(rule.scale));
  }
  if (rule.placement == WeightPlacement::kInput) {
    absl::StrAppend(&text, ", applied to the expert's input");
  }
  if (rule.num_identity_experts > 0) {
    absl::StrAppend(&text, "; the last ", rule.num_identity_experts, " of ",
                    rule.num_experts, " experts return their input");
  }
  return text;
}

std::string ExpertInWords(const ExpertSpec& expert) {
  const ActivationSpec& activation = expert.activation;
  const absl::string_view name = ActivationName(activation.activation);
  std::string text = absl::StrCat(
      expert.gated
          ? "gated, 3 matrices: down_proj(act(gate_proj x) * up_proj x)"
          : "classic, 2 matrices: down_proj(act(up_proj x))",
      " with ", std::string(name));
  if (activation.beta != 1.0F) {
    absl::StrAppendFormat(&text, ", beta %g",
                          static_cast<double>(activation.beta));
  }
  if (std::isfinite(activation.limit)) {
    absl::StrAppendFormat(&text, ", clamped to %g",
                          static_cast<double>(activation.limit));
  }
  if (activation.up_offset != 0.0F) {
    absl::StrAppendFormat(&text, ", up_proj x + %g",
                          static_cast<double>(activation.up_offset));
  }
  if (expert.has_bias) absl::StrAppend(&text, ", biases");
  return text;
}

std::string RangesText(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() &&
           numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[i]);
    if (last > i) absl::StrAppend(&text, "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string ThousandsText(int64_t number) {
  std::string text = absl::StrCat(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace moe
