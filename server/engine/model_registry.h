// The models that this server answers for.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "router/models/model.h"
#include "server/engine/layer_statistics.h"
#include "server/metrics/metrics.h"

namespace moe {

// A loaded model under the name that clients use, with its metrics.
struct ServedModel {
  std::string name;
  std::string weight_format;
  double load_seconds = 0;
  std::unique_ptr<Model> model;
  // One per layer of the model, in its order.
  std::vector<std::unique_ptr<LayerMetrics>> layer_metrics;
  std::unique_ptr<LayerStatistics[]> layer_statistics;  // may be null
};

// A layer of a served model; keeps the model alive while it is used.
struct ServedLayer {
  std::shared_ptr<const ServedModel> served;
  const ModelLayer* layer = nullptr;
  LayerMetrics* metrics = nullptr;
  LayerStatistics* statistics = nullptr;  // likewise
};

// Thread-safe.
class ModelRegistry {
 public:
  // Announces a model that is being loaded, unless there is one of that name.
  void Announce(absl::string_view name);
  // Takes a model, or an announcement, away. Requests that run keep the model.
  void Withdraw(absl::string_view name);
  // Makes a model visible, in place of the announcement or of a former version.
  void Publish(std::shared_ptr<const ServedModel> model);

  // Errors: NOT_FOUND; FAILED_PRECONDITION while it is still loading.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Find(
      absl::string_view name) const;
  // Errors: as Find, and NOT_FOUND naming the layers there are.
  absl::StatusOr<ServedLayer> FindLayer(absl::string_view model,
                                        int32_t layer) const;
  // A layer of a model that has been found. Errors: NOT_FOUND, as FindLayer.
  static absl::StatusOr<ServedLayer> LayerOf(
      std::shared_ptr<const ServedModel> served, int32_t layer);
  // By name; models that are still loading are left out.
  std::vector<std::shared_ptr<const ServedModel>> List() const;

 private:
  mutable absl::Mutex mutex_;
  // Null while loading.
  absl::btree_map<std::string, std::shared_ptr<const ServedModel>> models_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
