// The admission path: every RPC that computes goes through here.
//
// Submit puts a request into a bounded queue. One thread takes batches from it
// (see batch_queue.h), lets the requests write their rows into the batch, runs
// the layer on all compute threads, and lets them read their rows of the
// result. Nothing is locked meanwhile, and nothing is allocated once the
// buffers have grown to the largest batch.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_workspace.h"
#include "router/ffn_layer.h"
#include "server/engine/batch_queue.h"
#include "server/engine/model_registry.h"
#include "server/metrics/metrics.h"

namespace moe {

// Rows of what the layer computed; the memory is the engine's.
struct EngineResult {
  ConstMatrix output;         // [rows, d_model]; empty for route_only
  Routing routing;            // [rows, k]; empty for dense layers
  ConstMatrix router_logits;  // [rows, num_experts]; route_only
  // (row, expert) pairs that were chosen and left out, since the expert could
  // not be run.
  int64_t left_out = 0;
};

// Where the time of a request went, over all batches with rows of it.
struct EngineTiming {
  std::chrono::nanoseconds queued{0};    // admitted, and in no batch
  std::chrono::nanoseconds computed{0};  // the layer, without moving rows
};

// A request on its way through the engine: what to run, and whom to tell.
// The object belongs to whoever submits it and must live until Finish. `key`
// and `tokens` are set by SetLayer and by the owner. A request with more tokens
// than a batch has room for is decoded, run and encoded in parts, in order.
//
// All virtual functions are called from the engine's thread.
class EngineRequest : public BatchItem {
 public:
  EngineRequest() = default;
  EngineRequest(const EngineRequest&) = delete;
  EngineRequest& operator=(const EngineRequest&) = delete;
  virtual ~EngineRequest() = default;

  // The layer to run; `layer.metrics` may be null: then nothing is counted.
  // given_k: columns of the routing that the caller gives, 0 = none.
  void SetLayer(ServedLayer layer, int64_t given_k, bool route_only) {
    key = {.layer = layer.layer, .given_k = given_k, .route_only = route_only};
    layer_ = std::move(layer);
  }
  const ServedLayer& layer() const { return layer_; }
  const FfnLayer& ffn() const { return *layer_.layer->ffn; }
  // So far; in Encode, up to and with the batch of these rows. For the engine's
  // thread.
  const EngineTiming& timing() const { return timing_; }

  // Memory that the request and its answer take, to be bounded.
  int64_t bytes = 0;

  // Whether the caller is gone.
  virtual bool Cancelled() const = 0;
  // Writes the rows [first, first + hidden_states.rows()).
  virtual void Decode(int64_t first, Matrix hidden_states) const = 0;
  // Likewise the routing given by the caller. Only if given_k > 0.
  virtual void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                             Matrix weights) const = 0;
  // Takes the results of rows from `first` on.
  virtual void Encode(int64_t first, const EngineResult& rows) = 0;
  // The end, called exactly once if Submit was OK; the object may be gone
  // afterwards.
  virtual void Finish(const absl::Status& status) = 0;

 private:
  friend class Engine;
  ServedLayer layer_;
  absl::Status status_;  // of the parts that have run
  EngineTiming timing_;
  SteadyTime waiting_since_;  // in no batch since then
};

struct EngineOptions {
  BatchLimits batching{};
  // Bytes of all requests between Submit and Release; beyond it they are
  // refused. A request that is alone is always admitted.
  int64_t max_queue_bytes = int64_t{1} << 30;
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
  // error the request is the caller's again and Finish is not called.
  absl::Status Submit(EngineRequest* request);

  // Gives back the bytes of an admitted request, once its answer has been sent.
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

  // From now on Submit answers UNAVAILABLE; what was admitted goes on.
  void BeginDrain();

 private:
  void Run();
  // Waits for a batch. False when the engine stops and nothing waits.
  // idle: no batch has just run.
  bool NextBatch(bool idle, Batch* batch);
  void RunBatch(const Batch& batch);
  absl::Status Compute(const Batch& batch, const EngineRequest& any,
                       EngineResult* result, ForwardStats* stats);
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
  // Of the batch that runs.
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
