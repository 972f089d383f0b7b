#include "experts/compute_turn.h"

namespace moe {

void ComputeTurn::Take() {
  absl::MutexLock lock(&mutex_);
  const auto free = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !taken_ && returning_ == 0;
  };
  mutex_.Await(absl::Condition(&free));
  taken_ = true;
}

void ComputeTurn::GiveUp() {
  absl::MutexLock lock(&mutex_);
  taken_ = false;
}

void ComputeTurn::TakeBack() {
  absl::MutexLock lock(&mutex_);
  ++returning_;
  const auto free = [this]()
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !taken_; };
  mutex_.Await(absl::Condition(&free));
  --returning_;
  taken_ = true;
}

}  // namespace moe
