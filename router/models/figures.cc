#include "router/models/figures.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "experts/base/rounding.h"
#include "experts/base/status_macros.h"
#include "experts/kernels/packed_matrix.h"
#include "experts/pack_stored.h"
#include "router/models/assemble_model.h"
#include "router/models/open_experts.h"

namespace moe {
namespace {

// The memory of a layer's small linear maps, float32 in every format, and of
// its selection bias.
int64_t SmallBytes(const LayerSpec& layer) {
  int64_t sum = 0;
  for (const LinearSpec* linear : layer.Linears()) {
    sum +=
        PackedLayout::For(WeightFormat::kF32, linear->out, linear->in).bytes();
    if (!linear->bias.empty()) sum += linear->out * int64_t{sizeof(float)};
  }
  if (!layer.selection_bias.empty()) {
    sum += layer.rule->num_experts * int64_t{sizeof(float)};
  }
  return sum;
}

int64_t PackedBytes(const ExpertSpec& expert, WeightFormat format) {
  const int64_t wide =
      PackedLayout::For(format, expert.d_ff, expert.d_model).bytes();
  const int64_t down =
      PackedLayout::For(format, expert.d_model, expert.d_ff).bytes();
  const int64_t biases = expert.parameters() - expert.flops_per_row() / 2;
  return (expert.gated ? 2 : 1) * wide + down + biases * int64_t{sizeof(float)};
}

// The memory of some experts of a set.
absl::StatusOr<int64_t> SetBytes(const Checkpoint& checkpoint,
                                 const ExpertSetSpec& set, WeightFormat format,
                                 absl::Span<const int32_t> ids) {
  if (format != WeightFormat::kAuto) {
    return static_cast<int64_t>(ids.size()) * PackedBytes(set.expert, format);
  }
  MOE_ASSIGN_OR_RETURN(const std::vector<StoredExpert> experts,
                       OpenExperts(checkpoint, set, ids));
  int64_t sum = 0;
  for (const int32_t id : ids) {
    const StoredExpert& expert = experts[static_cast<size_t>(id)];
    for (size_t p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      if (projection == Projection::kGate && !set.expert.gated) continue;
      sum += LayoutFor(format, expert.Weights(projection)).bytes();
    }
    for (const std::vector<float>& bias : expert.biases) {
      sum += static_cast<int64_t>(bias.size() * sizeof(float));
    }
  }
  return sum;
}

}  // namespace

int64_t ConventionalWidth(int64_t d_model) { return 4 * d_model; }

int64_t EqualGatedWidth(int64_t d_model, int64_t multiple_of) {
  const int64_t width = 2 * ConventionalWidth(d_model) / 3;
  return RoundUp(width, multiple_of);
}

TokenCost& TokenCost::operator+=(const TokenCost& other) {
  parameters += other.parameters;
  flops += other.flops;
  bytes += other.bytes;
  return *this;
}

absl::StatusOr<int64_t> SetBytes(const Checkpoint& checkpoint,
                                 const ExpertSetSpec& set,
                                 WeightFormat format) {
  std::vector<int32_t> all(static_cast<size_t>(set.num_experts));
  std::iota(all.begin(), all.end(), 0);
  return SetBytes(checkpoint, set, format, all);
}

absl::StatusOr<int64_t> LayerBytes(const Checkpoint& checkpoint,
                                   const LayerSpec& layer, WeightFormat format,
                                   const ModelPart& part) {
  if (part.shard() && !layer.rule) return 0;
  const std::vector<int32_t> held =
      layer.rule ? HeldExperts(layer, part) : std::vector<int32_t>{0};
  MOE_ASSIGN_OR_RETURN(int64_t sum,
                       SetBytes(checkpoint, layer.experts, format, held));
  if (part.shard()) return sum;
  if (layer.shared_expert) {
    MOE_ASSIGN_OR_RETURN(const int64_t shared,
                         SetBytes(checkpoint, *layer.shared_expert, format));
    sum += shared;
  }
  return sum + SmallBytes(layer);
}

absl::StatusOr<TokenCost> TokenCostOf(const Checkpoint& checkpoint,
                                      const LayerSpec& layer,
                                      WeightFormat format) {
  // Identity experts can make it less, and a rule may choose more of them than
  // there are others.
  const int64_t chosen =
      layer.rule ? std::min(layer.rule->top_k, layer.experts.num_experts) : 1;
  MOE_ASSIGN_OR_RETURN(const int64_t all,
                       SetBytes(checkpoint, layer.experts, format));
  TokenCost cost;
  cost.parameters = chosen * layer.experts.expert.parameters();
  cost.flops = chosen * layer.experts.expert.flops_per_row();
  cost.bytes = all / layer.experts.num_experts * chosen;
  if (layer.shared_expert) {
    const ExpertSpec& shared = layer.shared_expert->expert;
    MOE_ASSIGN_OR_RETURN(const int64_t bytes,
                         SetBytes(checkpoint, *layer.shared_expert, format));
    cost += {.parameters = shared.parameters(),
             .flops = shared.flops_per_row(),
             .bytes = bytes};
  }
  cost.bytes += SmallBytes(layer);
  if (!layer.selection_bias.empty()) cost.parameters += layer.rule->num_experts;
  for (const LinearSpec* linear : layer.Linears()) {
    cost.parameters += linear->parameters();
    cost.flops += 2 * linear->out * linear->in;
  }
  return cost;
}

}  // namespace moe
