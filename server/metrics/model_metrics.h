// What is counted about models and their layers.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "experts/kernels/machine_rates.h"
#include "experts/weights_bytes.h"
#include "server/metrics/expert_metrics.h"
#include "server/metrics/layer_metrics.h"
#include "server/metrics/metric_families.h"

namespace moe {

// What ModelFamilies::Add has made.
struct ModelMetrics {
  ExpertMetrics detail = ExpertMetrics::kFull;  // never kAuto
  // As given. What they count into is of the registry, which must outlive them.
  std::vector<std::unique_ptr<LayerMetrics>> layers{};
};

// The families of metrics that have a label `model`. Thread-safe.
class ModelFamilies {
 public:
  ModelFamilies(prometheus::Registry& registry, ExpertMetrics detail);

  // Before the first model.
  void SetMachine(const MachineRates& rates);

  // A model is about to be loaded, unless there is one of that name.
  void Announced(absl::string_view model);
  // It is served no longer.
  void Withdrawn(absl::string_view model);
  // It has been loaded and answers.
  void Ready(absl::string_view model, const WeightsBytes& weights,
             double load_seconds);
  // A model, or a new version of one, has been loaded, or was no good.
  void Loaded(bool ok) { (ok ? loads_ok_ : loads_failed_)->Increment(); }

  // The counters of a model and its layers, created at 0; those of a model that
  // had the name before go on.
  ModelMetrics Add(absl::string_view model, absl::Span<const LayerCost> layers);

 private:
  // What all models that ever had one name count into.
  struct ModelSeries {
    ExpertMetrics detail = ExpertMetrics::kFull;
    LayerSeries of_model{};
  };

  ModelSeries SeriesOf(absl::string_view model,
                       absl::Span<const LayerCost> layers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  LayerSeries MakeLayer(absl::string_view model, const ModelSeries& series,
                        const LayerCost& cost);

  const ExpertMetrics detail_;
  CounterFamily* const expert_tokens_;
  CounterFamily* const layer_tokens_;
  CounterFamily* const layer_seconds_;
  GaugeFamily* const balancedness_;
  CounterFamily* const expert_seconds_;
  CounterFamily* const expert_bytes_;
  CounterFamily* const expert_flops_;
  CounterFamily* const roofline_seconds_;
  GaugeFamily* const ready_;
  GaugeFamily* const weights_bytes_;
  GaugeFamily* const load_duration_;
  prometheus::Counter* loads_ok_;
  prometheus::Counter* loads_failed_;

  absl::Mutex mutex_;
  MachineRates rates_ ABSL_GUARDED_BY(mutex_);
  int64_t expert_series_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::btree_map<std::string, ModelSeries> models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
