#include "server/rpc/open_calls.h"

#include <utility>
#include <vector>

namespace moe {

void OpenCalls::Add(int64_t calls) {
  absl::MutexLock lock(&mutex_);
  num_calls_ += calls;
}

bool OpenCalls::AddStream(std::shared_ptr<OpenStream> stream) {
  OpenStream* const key = stream.get();
  absl::MutexLock lock(&mutex_);
  streams_.emplace(key, std::move(stream));
  return draining_;
}

void OpenCalls::RemoveStream(OpenStream* stream) {
  std::shared_ptr<OpenStream> last;  // is destroyed without the lock
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  last = std::move(found->second);
  streams_.erase(found);
}

void OpenCalls::BeginDrain() {
  std::vector<std::shared_ptr<OpenStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [stream, owned] : streams_) streams.push_back(owned);
  }
  for (const auto& stream : streams) stream->Drain();
}

bool OpenCalls::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_calls_ == 0;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

}  // namespace moe
