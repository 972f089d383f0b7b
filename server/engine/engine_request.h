// A request on its way through the engine, made of what to run, how its rows
// are read and written, and whom to tell of the end.

#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
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
  // Of the request, up to and with the batch of these rows.
  EngineTiming timing{};
};

// Moves the rows of one request between its messages and batches. Called from
// the engine's thread alone.
class RequestCodec {
 public:
  virtual ~RequestCodec() = default;

  // Writes the rows [first, first + hidden_states.rows()).
  virtual void Decode(int64_t first, Matrix hidden_states) const = 0;
  // Likewise the routing given by the caller. Only if given_k > 0.
  virtual void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                             Matrix weights) const = 0;
  // Takes the results of rows from `first` on. Parts come in order, the first
  // with first == 0.
  virtual void Encode(int64_t first, const EngineResult& rows) = 0;
};

// Who waits for a request. Called from the engine's thread, Cancelled also from
// that of Submit.
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
// decoded, run and encoded in parts, in order.
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
  friend class Engine;

  // CANCELLED or DEADLINE_EXCEEDED if nobody waits for the response.
  absl::Status CheckWanted(SteadyTime now) const;

  const LayerCall call_;
  const int64_t bytes_;
  RequestCodec& codec_;
  RequestObserver& observer_;
  BatchItem item_;
  // For the engine's thread.
  absl::Status status_;  // of the parts that have run
  EngineTiming timing_;
  SteadyTime waiting_since_;  // in no batch since then
};

}  // namespace moe
