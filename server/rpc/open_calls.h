// The calls that run on the engine, from their arrival to their end, so that a
// server can wait for them.

#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace moe {

// A stream that is told when the server drains. Thread-safe.
class OpenStream {
 public:
  virtual ~OpenStream() = default;
  // No further requests; the stream ends once those that came have their
  // responses. May be called more than once.
  virtual void Drain() = 0;
};

// Thread-safe.
class OpenCalls {
 public:
  OpenCalls() = default;
  OpenCalls(const OpenCalls&) = delete;
  OpenCalls& operator=(const OpenCalls&) = delete;

  // A call that WaitUntilIdle waits for, as long as the object lives.
  class Count {
   public:
    explicit Count(OpenCalls* calls) : calls_(*calls) { calls_.Add(1); }
    ~Count() { calls_.Add(-1); }
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;

   private:
    OpenCalls& calls_;
  };

  // Keeps a stream until RemoveStream. Returns whether draining has begun: then
  // the stream has to be told.
  bool AddStream(std::shared_ptr<OpenStream> stream);
  void RemoveStream(OpenStream* stream);

  // Drains all streams.
  void BeginDrain();
  // Waits until no call is counted. False if that takes longer than `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);

 private:
  void Add(int64_t calls);

  absl::Mutex mutex_;
  int64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<OpenStream*, std::shared_ptr<OpenStream>> streams_
      ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace moe
