// What is counted about one layer of a model.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "experts/kernels/machine_rates.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "router/ffn_layer.h"
#include "router/models/model.h"

namespace moe {

// A layer, and what running it costs at least.
struct LayerCost {
  int layer = 0;
  int64_t num_experts = 0;  // 0 = dense
  // For one routed expert, or the dense FFN: weights that are read if it has
  // any row, and operations per row.
  double expert_bytes = 0;
  double expert_flops = 0;
  // For the shared expert, which every row visits.
  double shared_bytes = 0;
  double shared_flops = 0;
};

// The cost of a layer that is in memory.
LayerCost CostOf(const ModelLayer& layer);

// Where a layer's numbers go.
struct LayerSeries {
  // Series of the model.
  prometheus::Counter* expert_seconds = nullptr;
  prometheus::Counter* expert_bytes = nullptr;
  prometheus::Counter* expert_flops = nullptr;
  prometheus::Counter* roofline_seconds = nullptr;
  // Null or empty where less is told.
  prometheus::Counter* tokens = nullptr;
  prometheus::Counter* seconds = nullptr;
  prometheus::Gauge* balancedness = nullptr;
  std::vector<prometheus::Counter*> expert_tokens{};  // [num_experts]
};

// The counters of one layer. Thread-safe.
class LayerMetrics {
 public:
  // rates: of the machine; 0 = not measured.
  // What `series` points to must outlive this.
  LayerMetrics(const LayerCost& cost, const MachineRates& rates,
               LayerSeries series);

  // One batch that has run through the experts.
  // expert_offsets: as LayerWorkspace::expert_offsets, [experts + 1].
  void BatchDone(const ForwardStats& stats, int64_t tokens,
                 absl::Span<const int32_t> expert_offsets);

 private:
  void CountExperts(int64_t tokens, absl::Span<const int32_t> expert_offsets);

  const LayerCost cost_;
  const MachineRates rates_;
  const LayerSeries series_;
  // Rows per expert, older ones fading out. [num_experts], if balancedness is
  // told.
  absl::Mutex mutex_;
  std::vector<double> recent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
