#include "router/top_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "experts/base/check.h"

namespace moe {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Writes the `count` largest of `values` to `ids`, largest first, ties to the
// lower id. Insertion into a short sorted list: most values fail the first
// comparison.
void SelectLargest(absl::Span<const float> values, absl::Span<int32_t> ids) {
  const size_t count = ids.size();
  std::array<float, kMaxTopK> best;
  size_t filled = 0;
  for (size_t id = 0; id < values.size(); ++id) {
    const float value = std::isnan(values[id]) ? kMinusInfinity : values[id];
    if (filled == count && !(value > best[count - 1])) continue;
    size_t at = filled < count ? filled++ : count - 1;
    // An equal value found earlier has the lower id and stays in front.
    for (; at > 0 && value > best[at - 1]; --at) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = value;
    ids[at] = static_cast<int32_t>(id);
  }
}

float Sigmoid(float z) { return 1.0F / (1.0F + std::exp(-z)); }

void Softmax(absl::Span<const float> logits, float* out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float sum = 0.0F;
  for (size_t i = 0; i < logits.size(); ++i) {
    out[i] = std::exp(logits[i] - largest);
    sum += out[i];
  }
  for (size_t i = 0; i < logits.size(); ++i) out[i] /= sum;
}

void Score(const RoutingRule& rule, absl::Span<const float> logits,
           float* out) {
  switch (rule.score) {
    case ScoreFunction::kSoftmax:
      Softmax(logits, out);
      return;
    case ScoreFunction::kSigmoid:
      std::transform(logits.begin(), logits.end(), out, Sigmoid);
      return;
    case ScoreFunction::kSqrtSoftplus:
      std::transform(logits.begin(), logits.end(), out, [](float z) {
        // log(1 + exp(z)) without overflow.
        return std::sqrt(std::max(z, 0.0F) +
                         std::log1p(std::exp(-std::fabs(z))));
      });
      return;
    case ScoreFunction::kLogits:
    case ScoreFunction::kSparseMixer:
      std::copy(logits.begin(), logits.end(), out);
      return;
  }
}

// How good a group of experts is by the selection scores of its members.
float GroupValue(GroupScore kind, absl::Span<const float> selection) {
  float first = kMinusInfinity;
  float second = kMinusInfinity;
  for (const float value : selection) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
  if (kind == GroupScore::kMax || selection.size() < 2) return first;
  return first + second;
}

void MaskGroups(const RoutingRule& rule, absl::Span<float> selection) {
  if (rule.num_groups <= 1 || rule.top_groups >= rule.num_groups) return;
  const auto groups = static_cast<size_t>(rule.num_groups);
  const size_t group_size = selection.size() / groups;
  std::array<float, kMaxExperts> values;
  for (size_t g = 0; g < groups; ++g) {
    values[g] = GroupValue(rule.group_score,
                           selection.subspan(g * group_size, group_size));
  }
  std::array<bool, kMaxExperts> keep{};
  for (int64_t n = 0; n < rule.top_groups; ++n) {
    size_t best = groups;
    for (size_t g = 0; g < groups; ++g) {
      if (!keep[g] && (best == groups || values[g] > values[best])) best = g;
    }
    keep[best] = true;
  }
  for (size_t i = 0; i < selection.size(); ++i) {
    if (!keep[i / group_size]) selection[i] = kMinusInfinity;
  }
}

void RenormalizeWeights(const RoutingRule& rule, absl::Span<float> weights) {
  if (rule.renormalize == Renormalize::kSum) {
    float sum = 0.0F;
    for (const float w : weights) sum += w;
    sum = std::max(sum + rule.renorm_epsilon, rule.renorm_min);
    // All scores underflowed: leave the zeros rather than make NaN of them.
    if (sum == 0.0F) return;
    for (float& w : weights) w /= sum;
  } else if (rule.renormalize == Renormalize::kPNorm) {
    float sum = 0.0F;
    for (const float w : weights) {
      sum += rule.renorm_p == 1.0F ? std::fabs(w)
                                   : std::pow(std::fabs(w), rule.renorm_p);
    }
    const float norm =
        rule.renorm_p == 1.0F ? sum : std::pow(sum, 1.0F / rule.renorm_p);
    if (norm == 0.0F) return;
    for (float& w : weights) w /= norm;
  }
}

// One pick of PhiMoE's sparse mixer: the largest logit that is left, weighed by
// a softmax over the logits close to it. `removed` is the pick before, or -1.
// An expert is close if (m - z) / max(|z|, m) <= 2 epsilon; 0/0 counts as
// close, as a comparison with NaN is false in the reference.
int32_t SparseMixerPick(absl::Span<const float> logits, float epsilon,
                        int32_t removed, float* weight) {
  int32_t pick = -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (static_cast<int32_t>(id) == removed) continue;
    const float z = std::isnan(logits[id]) ? kMinusInfinity : logits[id];
    const float best = pick < 0 || std::isnan(logits[static_cast<size_t>(pick)])
                           ? kMinusInfinity
                           : logits[static_cast<size_t>(pick)];
    if (pick < 0 || z > best) pick = static_cast<int32_t>(id);
  }
  const float largest = logits[static_cast<size_t>(pick)];
  float sum = 0.0F;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (static_cast<int32_t>(id) == removed) continue;
    const float z = logits[id];
    const float factor = std::max(std::fabs(z), largest);
    if ((largest - z) / factor > 2.0F * epsilon) continue;
    sum += std::exp(z - largest);
  }
  *weight = 1.0F / sum;
  return pick;
}

void ChooseSparseMixer(const RoutingRule& rule, absl::Span<const float> logits,
                       absl::Span<int32_t> ids, absl::Span<float> weights) {
  int32_t removed = -1;
  for (size_t j = 0; j < ids.size(); ++j) {
    ids[j] = SparseMixerPick(logits, rule.sparse_mixer_epsilon, removed,
                             &weights[j]);
    removed = ids[j];
  }
}

void ChooseRow(const RoutingRule& rule, absl::Span<const float> bias,
               absl::Span<const float> logits, absl::Span<int32_t> ids,
               absl::Span<float> weights) {
  const size_t num_experts = logits.size();
  std::array<float, kMaxExperts> score;
  std::array<float, kMaxExperts> selection;
  Score(rule, logits, score.data());
  std::copy_n(score.data(), num_experts, selection.data());
  for (size_t i = 0; i < bias.size(); ++i) selection[i] += bias[i];
  const auto selected = absl::MakeSpan(selection.data(), num_experts);
  MaskGroups(rule, selected);
  SelectLargest(selected, ids);

  for (size_t j = 0; j < ids.size(); ++j) {
    const auto id = static_cast<size_t>(ids[j]);
    switch (rule.weight) {
      case WeightSource::kScore:
        weights[j] = score[id];
        break;
      case WeightSource::kSoftmaxOfChosen:
        weights[j] = logits[id];
        break;
      case WeightSource::kSigmoidOfChosen:
        weights[j] = Sigmoid(logits[id]);
        break;
    }
  }
  if (rule.weight == WeightSource::kSoftmaxOfChosen) {
    Softmax(weights, weights.data());
  }
  RenormalizeWeights(rule, weights);
}

}  // namespace

void TopK(const RoutingRule& rule, absl::Span<const float> bias,
          ConstMatrix logits, MatrixView<int32_t> ids, Matrix weights) {
  MOE_DCHECK(bias.empty() ||
             static_cast<int64_t>(bias.size()) == rule.num_experts);
  MOE_DCHECK(logits.cols() == rule.num_experts);
  MOE_DCHECK(ids.rows() == logits.rows() && ids.cols() == rule.top_k);
  MOE_DCHECK(weights.rows() == logits.rows() && weights.cols() == rule.top_k);
  const auto num_experts = static_cast<size_t>(rule.num_experts);
  const auto top_k = static_cast<size_t>(rule.top_k);
  for (int64_t t = 0; t < logits.rows(); ++t) {
    const absl::Span<const float> row(logits.Row(t), num_experts);
    const absl::Span<int32_t> row_ids(ids.Row(t), top_k);
    const absl::Span<float> row_weights(weights.Row(t), top_k);
    if (rule.score == ScoreFunction::kSparseMixer) {
      ChooseSparseMixer(rule, row, row_ids, row_weights);
    } else {
      ChooseRow(rule, bias, row, row_ids, row_weights);
    }
    if (rule.scale != 1.0F) {
      for (float& w : row_weights) w *= rule.scale;
    }
  }
}

}  // namespace moe
