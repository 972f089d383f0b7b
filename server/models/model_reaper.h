// Destroys models that nobody uses any more, and gives their memory back to the
// system, away from the threads that serve.

#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/engine/model_registry.h"

namespace moe {

// Thread-safe.
class ModelReaper {
 public:
  ModelReaper();
  // Waits until everything handed over so far has been destroyed. Models that
  // are dropped later are destroyed by whoever drops them.
  ~ModelReaper();
  ModelReaper(const ModelReaper&) = delete;
  ModelReaper& operator=(const ModelReaper&) = delete;

  // A model that will be destroyed here once its last user has let it go.
  std::shared_ptr<const ServedModel> Own(std::unique_ptr<ServedModel> model);

 private:
  // Outlives the reaper as long as models do.
  struct Dead {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<const ServedModel>> models
        ABSL_GUARDED_BY(mutex);
    bool closed ABSL_GUARDED_BY(mutex) = false;
  };

  void Run();

  const std::shared_ptr<Dead> dead_ = std::make_shared<Dead>();
  std::thread thread_;  // last: uses the above
};

}  // namespace moe
