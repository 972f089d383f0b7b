// The admission path: every RPC that computes goes through here.
//
// Submit puts a request into a bounded queue. A thread takes batches from it
// (see batch_queue.h), lets the codecs of requests write their rows into the
// batch, runs the layer on all compute threads, and lets them read their rows
// of the result (see batch_runner.h). Nothing is locked meanwhile but, in the
// end, a request whose rows are read.
//
// Where the experts of a layer are elsewhere, a batch waits while others
// compute. Then several threads take batches; one of them computes at a time.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_workspace.h"
#include "router/ffn_layer.h"
#include "server/common/steady_time.h"
#include "server/engine/batch_queue.h"
#include "server/engine/batch_runner.h"
#include "server/engine/engine_request.h"
#include "server/metrics/metrics.h"

namespace moe {

struct EngineOptions {
  BatchLimits batching{};
  // Bytes of all requests between Submit and Release; beyond it they are
  // refused. A request that is alone is always admitted.
  int64_t max_queue_bytes = int64_t{1} << 30;
  // More than one where batches wait for experts elsewhere: meanwhile others
  // compute. Requires: at least 1.
  int64_t batches_in_flight = 1;
  // Must outlive the engine.
  const SteadyClock* clock = &SteadyClock::Real();
};

// Thread-safe.
class Engine {
 public:
  // All must outlive the engine.
  Engine(const EngineOptions& options, Executor* executor,
         const Kernels& kernels, Metrics* metrics);
  // Finishes what was admitted.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Admits a request; never blocks on compute.
  // Errors: RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE when
  // draining, DEADLINE_EXCEEDED or CANCELLED if it is too late already. On
  // error the request is the caller's again and OnFinished is not called.
  absl::Status Submit(EngineRequest* request);

  // Gives back the bytes of an admitted request, once its response has been
  // sent.
  void Release(int64_t bytes) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    metrics_->AddQueueBytes(-bytes);
  }

  // Bytes between Submit and Release.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  const EngineOptions& options() const { return options_; }

  // How long what waits now will take, judged by the batches so far: when to
  // try again after RESOURCE_EXHAUSTED. At least a millisecond.
  std::chrono::milliseconds RetryAfter() const;

  // From now on Submit returns UNAVAILABLE; what was admitted goes on.
  void BeginDrain();

 private:
  void Run(BatchRunner& runner);
  // Waits for a batch, and for the turn to compute. False, without the turn,
  // when the engine stops and nothing waits.
  bool NextBatch(Batch* batch);
  // When the next batch should start; at once, if the engine stops.
  std::optional<SteadyTime> StartTime() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until a batch should start. False when the engine stops and nothing
  // waits.
  bool WaitForWork();
  // False if no batch should start now.
  bool TakeBatch(Batch* batch);
  // Finishes those that nobody waits for. now: when the batch was taken.
  void FinishDropped(const Batch& batch, SteadyTime now);
  // The end of a part, or of what was in the queue; of the request, with the
  // last of them.
  void Finish(EngineRequest& request, SteadyTime now);
  void CountBatch(int64_t tokens, SteadyTime start, SteadyTime end);

  const EngineOptions options_;
  Metrics* const metrics_;
  ComputeTurn turn_;

  std::atomic<int64_t> bytes_ = 0;

  mutable absl::Mutex mutex_;
  absl::CondVar work_;
  BatchQueue queue_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // batches
  // Nothing waited at some time after the last batch was taken.
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  double tokens_per_second_ ABSL_GUARDED_BY(mutex_) = 0;  // 0 = no batch yet
  SteadyTime last_batch_end_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::unique_ptr<BatchRunner>> runners_;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace moe
