#include "server/models/model_reaper.h"

#include <malloc.h>

#include <utility>

namespace moe {

ModelReaper::ModelReaper() {
  thread_ = std::thread([this] { Run(); });
}

ModelReaper::~ModelReaper() {
  {
    absl::MutexLock lock(&dead_->mutex);
    dead_->closed = true;
  }
  thread_.join();
}

std::shared_ptr<const ServedModel> ModelReaper::Own(
    std::unique_ptr<ServedModel> model) {
  return std::shared_ptr<const ServedModel>(
      model.release(), [dead = dead_](const ServedModel* last) {
        std::unique_ptr<const ServedModel> owned(last);
        absl::MutexLock lock(&dead->mutex);
        if (!dead->closed) dead->models.push_back(std::move(owned));
      });
}

void ModelReaper::Run() {
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(dead_->mutex) {
    return dead_->closed || !dead_->models.empty();
  };
  bool closed = false;
  while (!closed) {
    std::vector<std::unique_ptr<const ServedModel>> models;
    {
      absl::MutexLock lock(&dead_->mutex);
      dead_->mutex.Await(absl::Condition(&wanted));
      models.swap(dead_->models);
      closed = dead_->closed;
    }
    if (models.empty()) continue;
    models.clear();
    // Buffers of some megabytes lie in heaps that would keep them.
    malloc_trim(0);
  }
}

}  // namespace moe
