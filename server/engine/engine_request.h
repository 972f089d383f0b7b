// A request on its way through the engine, made of what to run, how its rows
// are read and written, and whom to tell of the end.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "experts/base/matrix_view.h"
#include "router/ffn_layer.h"
#include "server/common/steady_time.h"
#include "server/engine/batch_queue.h"
#include "server/engine/layer_call.h"

namespace moe {

// Where the time of a request went, over all batches with rows of it.
struct EngineTiming {
  std::chrono::nanoseconds queued{0};    // admitted, and in no batch
  std::chrono::nanoseconds computed{0};  // the layer, without moving rows
};

// Rows of what the layer computed; the memory is the engine's.
struct EngineResult {
  ConstMatrix output;         // [rows, d_model]; empty for route_only
  Routing routing;            // [rows, k]; empty for dense layers
  ConstMatrix router_logits;  // [rows, num_experts]; route_only
  // (row, expert) pairs that were chosen and left out, since the expert could
  // not be run.
  int64_t left_out = 0;
  // The request's times, up to and with the batch of these rows.
  EngineTiming timing{};
};

// Moves the rows of one request between its messages and batches. Called from
// the engine's threads: Decode and DecodeRouting at any time, for parts that do
// not overlap; the others one at a time.
class RequestCodec {
 public:
  virtual ~RequestCodec() = default;

  // Writes the rows [first, first + hidden_states.rows()).
  virtual void Decode(int64_t first, Matrix hidden_states) const = 0;
  // Likewise the routing given by the caller. Only if given_k > 0.
  virtual void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                             Matrix weights) const = 0;
  // Makes room for the response. Once, before the first Encode.
  virtual void LayOut() = 0;
  // Takes the results of rows from `first` on. Parts may come in any order.
  virtual void Encode(int64_t first, const EngineResult& rows) = 0;
};

// Who waits for a request. Called from the engine's threads, Cancelled also
// from that of Submit, and at any time.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;

  // Whether the caller is gone.
  virtual bool Cancelled() const = 0;
  // The end, called exactly once if Submit was OK; the request may be destroyed
  // within.
  virtual void OnFinished(const absl::Status& status) = 0;
};

// Belongs to whoever submits it, and must live until OnFinished, as must what
// it refers to. A request with more tokens than a batch has room for is
// decoded, run and encoded in parts, several of which may be in flight.
class EngineRequest final {
 public:
  // bytes: memory that the request and its response take, to be bounded
  EngineRequest(LayerCall call, SteadyTime deadline, int64_t bytes,
                RequestCodec* codec, RequestObserver* observer)
      : call_(std::move(call)),
        bytes_(bytes),
        codec_(*codec),
        observer_(*observer),
        item_(call_.Key(), call_.tokens, deadline, this) {}
  EngineRequest(const EngineRequest&) = delete;
  EngineRequest& operator=(const EngineRequest&) = delete;

  const LayerCall& call() const { return call_; }
  int64_t tokens() const { return call_.tokens; }
  int64_t bytes() const { return bytes_; }
  SteadyTime deadline() const { return item_.deadline(); }

 private:
  friend class BatchRunner;
  friend class Engine;

  // CANCELLED or DEADLINE_EXCEEDED if nobody waits for the response.
  absl::Status CheckWanted(SteadyTime now) const;
  // False once a part has failed, or nobody waits: the rest need not run.
  bool Wanted(SteadyTime now) const {
    return !failed_.load(std::memory_order_relaxed) && CheckWanted(now).ok();
  }

  // Notes why the request has failed, unless `status` is OK or it has failed
  // already. Whether this is the first reason.
  bool Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The status of a request all of whose parts have ended.
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

  // Parts in batches, and one for the rest in the queue.
  void Hold() { holds_.fetch_add(1, std::memory_order_relaxed); }
  // Whether it was the last: nothing more happens to the request.
  bool LetGo() { return holds_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  const LayerCall call_;
  const int64_t bytes_;
  RequestCodec& codec_;
  RequestObserver& observer_;
  BatchItem item_;
  std::atomic<int> holds_ = 1;
  std::atomic<bool> failed_ = false;

  // Held while rows are encoded; parts of other requests are not concerned.
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool laid_out_ ABSL_GUARDED_BY(mutex_) = false;
  EngineTiming timing_ ABSL_GUARDED_BY(mutex_);
  int parts_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  // In no batch since then, while no part is in flight.
  SteadyTime waiting_since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
