// The admission path: every RPC that computes goes through here.
//
// Requests wait in one bounded queue and run one after the other; each one uses
// all compute threads.

#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "experts/base/aligned_buffer.h"
#include "router/ffn_layer.h"
#include "server/metrics.h"
#include "server/model_registry.h"
#include "server/tensor_codec.h"

namespace moe {

// What a request gets; the memory is the engine's, valid during Encode.
struct EngineResult {
  ConstMatrix output;         // [tokens, d_model]; empty for route_only
  Routing routing;            // [tokens, k]; empty for dense layers
  ConstMatrix router_logits;  // [tokens, num_experts]; route_only
};

// A request on its way through the engine: what to run, and whom to tell.
// The object belongs to whoever submits it and must live until Finish.
class EngineRequest {
 public:
  EngineRequest() = default;
  EngineRequest(const EngineRequest&) = delete;
  EngineRequest& operator=(const EngineRequest&) = delete;
  virtual ~EngineRequest() = default;

  ServedLayer layer;
  WireMatrix hidden_states;
  std::optional<WireRouting> routing;  // given by the caller
  bool route_only = false;
  absl::Time deadline = absl::InfiniteFuture();

  // Whether the caller is gone. Called from the engine's thread.
  virtual bool Cancelled() const = 0;
  // Takes the result. Called from the engine's thread, before Finish(OK).
  virtual void Encode(const EngineResult& result) = 0;
  // The end, called exactly once if Submit was OK; the object may be gone
  // afterwards.
  virtual void Finish(const absl::Status& status) = 0;

 private:
  friend class Engine;
  absl::Time submitted_;
};

struct EngineOptions {
  // Requests beyond either bound are turned away. A request that is alone in
  // the queue is always admitted.
  int64_t max_queue_tokens = 65536;
  int64_t max_queue_bytes = int64_t{1} << 30;
};

// Thread-safe.
class Engine {
 public:
  // All must outlive the engine.
  Engine(const EngineOptions& options, Executor* executor, Metrics* metrics);
  // Finishes what was admitted.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Admits a request; never blocks.
  // Errors: RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE when
  // draining, DEADLINE_EXCEEDED or CANCELLED if it is too late already. On
  // error the request is the caller's again and Finish is not called.
  absl::Status Submit(EngineRequest* request);

  // From now on Submit answers UNAVAILABLE; what was admitted goes on.
  void BeginDrain();

 private:
  void Run();
  void RunRequest(EngineRequest* request);
  // DEADLINE_EXCEEDED or CANCELLED (counted), if nobody waits for the answer.
  absl::Status CheckWanted(const EngineRequest& request);
  absl::Status Compute(EngineRequest& request, ForwardStats& stats,
                       double& decode_seconds, EngineResult& result);
  static int64_t BytesOf(const EngineRequest& request);

  const EngineOptions options_;
  Metrics* const metrics_;
  LayerWorkspace workspace_;
  AlignedBuffer<float> input_;
  AlignedBuffer<float> output_;
  AlignedBuffer<int32_t> given_ids_;
  AlignedBuffer<float> given_weights_;

  absl::Mutex mutex_;
  std::deque<EngineRequest*> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t queue_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t queue_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace moe
