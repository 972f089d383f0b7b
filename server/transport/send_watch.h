// Ends calls whose peer does not take what it is sent.
//
// A message that waits for its peer holds memory that counts against
// --max_queue_bytes: peers that never read would in the end shut out all
// others.

#pragma once

#include <functional>
#include <list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/common/steady_time.h"

namespace moe {

struct SendWatchOptions {
  // How long a message may take to be sent, and how long while memory is short.
  absl::Duration timeout;
  absl::Duration timeout_under_pressure;
  // Whether memory is short.
  std::function<bool()> under_pressure;
  // Called for each call that is ended.
  std::function<void()> on_stalled;
  const SteadyClock* clock = &SteadyClock::Real();
};

// Thread-safe.
class SendWatch {
 public:
  // Ends a call. Must be harmless once the call has ended.
  using EndCall = absl::AnyInvocable<void()>;

 private:
  struct Pending {
    EndCall end_call;  // null: has been called
    SteadyTime since;
  };

 public:
  // Stands for a message on its way.
  using Send = std::list<Pending>::iterator;

  explicit SendWatch(SendWatchOptions options);
  ~SendWatch();
  SendWatch(const SendWatch&) = delete;
  SendWatch& operator=(const SendWatch&) = delete;

  // A call begins to send a message. `end_call` is called, from another thread,
  // if that takes too long, even while End is being called; it goes with End.
  Send Begin(EndCall end_call);
  // The message has been sent, or the call has ended. Once for each Begin.
  void End(Send send);

  // Ends the calls that have been sending for too long. The watch does it by
  // itself every quarter of the shorter timeout.
  void EndStalled();

 private:
  // The shorter of the two timeouts.
  absl::Duration ShorterTimeout() const;
  // Ends the call that has been sending longest, if that is too long. Returns
  // whether it was.
  bool EndOne(absl::Duration timeout);

  const SendWatchOptions options_;
  absl::Mutex mutex_;
  std::list<Pending> sends_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  std::list<Pending> ended_ ABSL_GUARDED_BY(mutex_);  // End is still to come
  absl::Notification stop_;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace moe
