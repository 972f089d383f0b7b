#include "server/transport/send_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

SendWatch::SendWatch(SendWatchOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

SendWatch::~SendWatch() {
  stop_.Notify();
  thread_.join();
}

SendWatch::Send SendWatch::Begin(grpc_call* call) {
  std::list<Pending> one = {{.call = call, .since = Clock::now()}};
  absl::MutexLock lock(&mutex_);
  sends_.splice(sends_.end(), one);
  return std::prev(sends_.end());
}

void SendWatch::End(Send send) {
  absl::MutexLock lock(&mutex_);
  (send->call != nullptr ? sends_ : ended_).erase(send);
}

bool SendWatch::EndOne(absl::Duration timeout) {
  grpc_call* call = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (sends_.empty() ||
        absl::FromChrono(Clock::now() - sends_.front().since) < timeout) {
      return false;
    }
    call = std::exchange(sends_.front().call, nullptr);
    ended_.splice(ended_.end(), sends_, sends_.begin());
    grpc_call_ref(call);
  }
  options_.on_stalled();
  // Without the lock: gRPC may tell the call of it from within.
  grpc_call_cancel(call, /*reserved=*/nullptr);
  grpc_call_unref(call);
  return true;
}

void SendWatch::Run() {
  const absl::Duration shorter =
      std::min(options_.timeout, options_.timeout_under_pressure);
  while (!stop_.WaitForNotificationWithTimeout(shorter / 4)) {
    while (EndOne(options_.under_pressure() ? shorter : options_.timeout)) {
    }
  }
}

}  // namespace moe
