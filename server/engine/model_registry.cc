#include "server/engine/model_registry.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

// Names from outside come back in messages: cut, and without control
// characters.
std::string Shown(absl::string_view name) {
  return absl::Utf8SafeCEscape(name.substr(0, 64));
}

// "0, 1, 3" or, for many, "0 to 60 (58 layers)".
std::string LayersText(const Model& model) {
  const auto& layers = model.layers();
  if (layers.empty()) return "none";
  if (layers.size() <= 8) {
    return absl::StrJoin(layers, ", ",
                         [](std::string* out, const ModelLayer& layer) {
                           absl::StrAppend(out, layer.index);
                         });
  }
  return absl::StrCat(layers.front().index, " to ", layers.back().index, " (",
                      layers.size(), " layers)");
}

}  // namespace

void ModelRegistry::Announce(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  models_.try_emplace(std::string(name), nullptr);
}

void ModelRegistry::Withdraw(absl::string_view name) {
  std::shared_ptr<const ServedModel> last;  // is destroyed outside the lock
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) return;
  last = std::move(found->second);
  models_.erase(found);
}

void ModelRegistry::Publish(std::shared_ptr<const ServedModel> model) {
  absl::MutexLock lock(&mutex_);
  // The former version, if any, is destroyed outside the lock.
  models_[model->name].swap(model);
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ModelRegistry::Find(
    absl::string_view name) const {
  absl::ReaderMutexLock lock(&mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) {
    return absl::NotFoundError(
        absl::StrCat("model: no model named \"", Shown(name), "\""));
  }
  if (found->second == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("model: \"", Shown(name), "\" is still loading"));
  }
  return found->second;
}

absl::StatusOr<ServedLayer> ModelRegistry::FindLayer(absl::string_view model,
                                                     int32_t layer) const {
  MOE_ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> served, Find(model));
  return LayerOf(std::move(served), layer);
}

absl::StatusOr<ServedLayer> ModelRegistry::LayerOf(
    std::shared_ptr<const ServedModel> served, int32_t layer) {
  const auto& layers = served->model->layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].index != layer) continue;
    LayerMetrics* metrics = served->layer_metrics[i].get();
    LayerStatistics* statistics = served->layer_statistics == nullptr
                                      ? nullptr
                                      : &served->layer_statistics[i];
    return ServedLayer{.served = std::move(served),
                       .layer = &layers[i],
                       .metrics = metrics,
                       .statistics = statistics};
  }
  return absl::NotFoundError(absl::StrCat(
      "layer: want one of ", LayersText(*served->model), "; got ", layer));
}

std::vector<std::shared_ptr<const ServedModel>> ModelRegistry::List() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<std::shared_ptr<const ServedModel>> result;
  for (const auto& [name, model] : models_) {
    if (model != nullptr) result.push_back(model);
  }
  return result;
}

}  // namespace moe
