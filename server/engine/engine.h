// The admission path: every RPC that computes goes through here.
//
// Submit puts a request into a bounded queue. One thread takes batches from it
// (see batch_queue.h), lets the codecs of requests write their rows into the
// batch, runs the layer on all compute threads, and lets them read their rows
// of the result. Nothing is locked meanwhile, and nothing is allocated once the
// buffers have grown to the largest batch.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_workspace.h"
#include "router/ffn_layer.h"
#include "server/common/steady_time.h"
#include "server/engine/batch_queue.h"
#include "server/engine/engine_request.h"
#include "server/metrics/metrics.h"

namespace moe {

struct EngineOptions {
  BatchLimits batching{};
  // Bytes of all requests between Submit and Release; beyond it they are
  // refused. A request that is alone is always admitted.
  int64_t max_queue_bytes = int64_t{1} << 30;
  // Must outlive the engine.
  const SteadyClock* clock = &SteadyClock::Real();
};

// Thread-safe.
class Engine {
 public:
  // All must outlive the engine.
  Engine(const EngineOptions& options, ExpertWorkspace* workspace,
         Metrics* metrics);
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
  void Run();
  // Waits for a batch. False when the engine stops and nothing waits.
  // idle: no batch has just run.
  bool NextBatch(bool idle, Batch* batch);
  void RunBatch(const Batch& batch);
  SteadyTime Now() const { return options_.clock->Now(); }
  double SecondsSince(SteadyTime start) const;
  // Finishes those that nobody waits for. now: when the batch was taken.
  void FinishDropped(const Batch& batch, SteadyTime now);
  absl::Status Compute(const Batch& batch, EngineResult* result,
                       ForwardStats* stats);
  // Lets the requests of a batch write their rows.
  void DecodeBatch(const Batch& batch, Matrix input, MatrixView<int32_t> ids,
                   Matrix weights);
  // now: when the layer had run.
  void EncodeBatch(const Batch& batch, const absl::Status& computed,
                   const EngineResult& result, SteadyTime now);
  // Whether the experts of rows of the batch have all been run.
  absl::Status CheckExperts(int64_t first, int64_t count) const;
  // Pairs of rows of the batch whose experts were left out.
  int64_t LeftOut(int64_t first, int64_t count) const;
  // start: of the batch; encode: of the writing of its rows.
  void CountStatistics(const Batch& batch, SteadyTime start, SteadyTime encode,
                       SteadyTime end) const;

  const EngineOptions options_;
  Metrics* const metrics_;
  LayerWorkspace workspace_;
  AlignedBuffer<float> input_;
  AlignedBuffer<float> output_;
  AlignedBuffer<int32_t> given_ids_;
  AlignedBuffer<float> given_weights_;
  // About the batch that runs.
  double decode_seconds_ = 0;
  SteadyTime decoded_;

  std::atomic<int64_t> bytes_ = 0;
  std::atomic<double> tokens_per_second_ = 0;  // 0 = no batch yet

  mutable absl::Mutex mutex_;
  absl::CondVar work_;
  BatchQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace moe
