// Whose turn it is to compute.
//
// Batches in flight share the threads of one executor. Two that computed at
// once would read their weights side by side and slow each other; so they take
// turns, and one that waits for what others compute gives its turn up
// meanwhile.

#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace moe {

// Thread-safe.
class ComputeTurn {
 public:
  ComputeTurn() = default;
  ComputeTurn(const ComputeTurn&) = delete;
  ComputeTurn& operator=(const ComputeTurn&) = delete;

  // Waits until nobody has the turn, nor wants it back.
  void Take();
  // Requires: the turn.
  void GiveUp();
  // Takes the turn again, before all who call Take.
  void TakeBack();

 private:
  absl::Mutex mutex_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t returning_ ABSL_GUARDED_BY(mutex_) = 0;  // in TakeBack
};

// While it lives, the batch that has `turn` waits for others. Null: there are
// no turns.
class AwayFromCompute {
 public:
  explicit AwayFromCompute(ComputeTurn* turn) : turn_(turn) {
    if (turn_ != nullptr) turn_->GiveUp();
  }
  ~AwayFromCompute() {
    if (turn_ != nullptr) turn_->TakeBack();
  }
  AwayFromCompute(const AwayFromCompute&) = delete;
  AwayFromCompute& operator=(const AwayFromCompute&) = delete;

 private:
  ComputeTurn* const turn_;
};

}  // namespace moe
