#include "server/transport/send_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace moe {

SendWatch::SendWatch(SendWatchOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] {
    const absl::Duration pause = ShorterTimeout() / 4;
    while (!stop_.WaitForNotificationWithTimeout(pause)) EndStalled();
  });
}

SendWatch::~SendWatch() {
  stop_.Notify();
  thread_.join();
}

SendWatch::Send SendWatch::Begin(EndCall end_call) {
  std::list<Pending> one;
  one.push_back(
      {.end_call = std::move(end_call), .since = options_.clock->Now()});
  absl::MutexLock lock(&mutex_);
  sends_.splice(sends_.end(), one);
  return std::prev(sends_.end());
}

void SendWatch::End(Send send) {
  std::list<Pending> one;  // is destroyed without the lock
  absl::MutexLock lock(&mutex_);
  one.splice(one.end(), send->end_call != nullptr ? sends_ : ended_, send);
}

bool SendWatch::EndOne(absl::Duration timeout) {
  EndCall end_call;
  {
    absl::MutexLock lock(&mutex_);
    if (sends_.empty() || absl::FromChrono(options_.clock->Now() -
                                           sends_.front().since) < timeout) {
      return false;
    }
    end_call = std::exchange(sends_.front().end_call, nullptr);
    ended_.splice(ended_.end(), sends_, sends_.begin());
  }
  options_.on_stalled();
  // Without the lock: gRPC may tell the call of it from within.
  end_call();
  return true;
}

void SendWatch::EndStalled() {
  while (
      EndOne(options_.under_pressure() ? ShorterTimeout() : options_.timeout)) {
  }
}

absl::Duration SendWatch::ShorterTimeout() const {
  return std::min(options_.timeout, options_.timeout_under_pressure);
}

}  // namespace moe
