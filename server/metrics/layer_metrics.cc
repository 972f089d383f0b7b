#include "server/metrics/layer_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace moe {
namespace {

// Batches of about that many rows of a layer make its balancedness: an expert
// of 256, of which each row takes 8, then has seen 500, and chance alone moves
// the largest by an eighth.
constexpr double kRecentTokens = 16'384;

}  // namespace

LayerCost CostOf(const ModelLayer& layer) {
  const ExpertShard& experts = layer.ffn->experts();
  const auto bytes = static_cast<double>(experts.weights().total());
  // Experts that are elsewhere cost nothing here.
  const auto held = static_cast<double>(
      layer.held_experts.empty() ? experts.num_experts()
                                 : int64_t(layer.held_experts.size()));
  LayerCost cost{
      .layer = layer.index,
      .num_experts = layer.ffn->num_experts(),
      .expert_bytes = bytes / held,
      .expert_flops =
          bytes > 0 ? static_cast<double>(experts.spec().flops_per_row()) : 0};
  if (const ExpertShard* shared = layer.ffn->shared_expert()) {
    cost.shared_bytes = static_cast<double>(shared->weights().total());
    cost.shared_flops = static_cast<double>(shared->spec().flops_per_row());
  }
  return cost;
}

LayerMetrics::LayerMetrics(const LayerCost& cost, const MachineRates& rates,
                           LayerSeries series)
    : cost_(cost),
      rates_(rates),
      series_(std::move(series)),
      recent_(series_.balancedness == nullptr
                  ? 0
                  : static_cast<size_t>(cost.num_experts)) {}

void LayerMetrics::BatchDone(const ForwardStats& stats, int64_t tokens,
                             absl::Span<const int32_t> expert_offsets) {
  const auto rows = static_cast<double>(tokens);
  double bytes = tokens > 0 ? cost_.shared_bytes : 0;
  double flops = rows * cost_.shared_flops;
  for (size_t e = 0; e + 1 < expert_offsets.size(); ++e) {
    if (expert_offsets[e + 1] > expert_offsets[e]) bytes += cost_.expert_bytes;
  }
  if (!expert_offsets.empty()) {
    flops += expert_offsets.back() * cost_.expert_flops;
  }
  const double seconds =
      stats.stage_seconds[static_cast<size_t>(Stage::kExperts)];
  series_.expert_seconds->Increment(seconds);
  series_.expert_bytes->Increment(bytes);
  series_.expert_flops->Increment(flops);
  if (rates_.read_gb_per_s > 0 && rates_.peak_gflop_per_s > 0) {
    series_.roofline_seconds->Increment(
        std::max(bytes / (1e9 * rates_.read_gb_per_s),
                 flops / (1e9 * rates_.peak_gflop_per_s)));
  }
  if (series_.tokens == nullptr) return;
  series_.tokens->Increment(rows);
  series_.seconds->Increment(std::accumulate(stats.stage_seconds.begin(),
                                             stats.stage_seconds.end(), 0.0));
  if (series_.balancedness != nullptr) CountExperts(tokens, expert_offsets);
}

void LayerMetrics::CountExperts(int64_t tokens,
                                absl::Span<const int32_t> expert_offsets) {
  const double fade = std::exp(-static_cast<double>(tokens) / kRecentTokens);
  // Experts that compute nothing come after those that do, and are not in the
  // offsets.
  const size_t num_experts = expert_offsets.size() - 1;
  absl::MutexLock lock(&mutex_);
  double sum = 0;
  double most = 0;
  for (size_t e = 0; e < num_experts; ++e) {
    const int32_t rows = expert_offsets[e + 1] - expert_offsets[e];
    if (rows > 0 && !series_.expert_tokens.empty())
      series_.expert_tokens[e]->Increment(rows);
    recent_[e] = recent_[e] * fade + rows;
    sum += recent_[e];
    most = std::max(most, recent_[e]);
  }
  if (most > 0) {
    series_.balancedness->Set(sum / (static_cast<double>(num_experts) * most));
  }
}

}  // namespace moe
