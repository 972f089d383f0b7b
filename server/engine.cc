#include "server/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"

namespace moe {

Engine::Engine(const EngineOptions& options, Executor* executor,
               Metrics* metrics)
    : options_(options), metrics_(metrics), workspace_(executor) {
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

int64_t Engine::BytesOf(const EngineRequest& request) {
  const WireMatrix& x = request.hidden_states;
  // The tensor that came and the one that goes.
  return 2 * x.rows * x.cols * ElementBytes(x.dtype);
}

absl::Status Engine::CheckWanted(const EngineRequest& request) {
  if (request.Cancelled()) {
    metrics_->Rejected(Rejection::kCancelled);
    return absl::CancelledError("cancelled by the caller");
  }
  if (absl::Now() >= request.deadline) {
    metrics_->Rejected(Rejection::kExpired);
    return absl::DeadlineExceededError("deadline passed before compute");
  }
  return absl::OkStatus();
}

absl::Status Engine::Submit(EngineRequest* request) {
  MOE_RETURN_IF_ERROR(CheckWanted(*request));
  const int64_t tokens = request->hidden_states.rows;
  const int64_t bytes = BytesOf(*request);
  request->submitted_ = absl::Now();
  absl::MutexLock lock(&mutex_);
  if (draining_) {
    metrics_->Rejected(Rejection::kDraining);
    return absl::UnavailableError("server is draining; retry elsewhere");
  }
  if (!queue_.empty() && (queue_tokens_ + tokens > options_.max_queue_tokens ||
                          queue_bytes_ + bytes > options_.max_queue_bytes)) {
    metrics_->Rejected(Rejection::kQueueFull);
    return absl::ResourceExhaustedError(
        absl::StrCat("queue is full: ", queue_tokens_, " tokens waiting of ",
                     options_.max_queue_tokens, "; retry later"));
  }
  queue_.push_back(request);
  queue_tokens_ += tokens;
  queue_bytes_ += bytes;
  metrics_->SetQueueTokens(queue_tokens_);
  return absl::OkStatus();
}

void Engine::BeginDrain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

void Engine::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() || stopping_;
  };
  while (true) {
    EngineRequest* request = nullptr;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(&has_work));
      if (queue_.empty()) return;
      request = queue_.front();
      queue_.pop_front();
      queue_tokens_ -= request->hidden_states.rows;
      queue_bytes_ -= BytesOf(*request);
      metrics_->SetQueueTokens(queue_tokens_);
    }
    metrics_->QueueWait(
        absl::ToDoubleSeconds(absl::Now() - request->submitted_));
    RunRequest(request);
  }
}

void Engine::RunRequest(EngineRequest* request) {
  absl::Status status = CheckWanted(*request);
  if (!status.ok()) return request->Finish(status);
  ForwardStats stats;
  double decode_seconds = 0;
  EngineResult result;
  status = Compute(*request, stats, decode_seconds, result);
  if (!status.ok()) return request->Finish(status);

  const absl::Time encode_start = absl::Now();
  request->Encode(result);
  const double encode_seconds =
      absl::ToDoubleSeconds(absl::Now() - encode_start);
  metrics_->BatchDone(stats, decode_seconds, encode_seconds,
                      request->hidden_states.rows, /*requests=*/1);
  const bool routed = !request->layer.layer->ffn->dense();
  if (routed && !request->route_only) {
    const auto offsets = workspace_.expert_offsets();
    const auto& counters = request->layer.metrics->expert_tokens;
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const int32_t tokens = offsets[e + 1] - offsets[e];
      if (tokens > 0) counters[e]->Increment(tokens);
    }
  }
  request->Finish(absl::OkStatus());
}

absl::Status Engine::Compute(EngineRequest& request, ForwardStats& stats,
                             double& decode_seconds, EngineResult& result) {
  const FfnLayer& ffn = *request.layer.layer->ffn;
  const WireMatrix& wire = request.hidden_states;
  const absl::Time start = absl::Now();
  const Matrix input(input_.Grow(wire.rows * wire.cols), wire.rows, wire.cols);
  Decode(wire, input);
  Routing given;
  if (request.routing.has_value()) {
    const WireMatrix& ids = request.routing->ids;
    const MatrixView<int32_t> ids_out(given_ids_.Grow(ids.rows * ids.cols),
                                      ids.rows, ids.cols);
    const Matrix weights_out(given_weights_.Grow(ids.rows * ids.cols), ids.rows,
                             ids.cols);
    DecodeIds(request.routing->ids, ids_out);
    Decode(request.routing->weights, weights_out);
    given = Routing{.ids = ids_out, .weights = weights_out};
  }
  decode_seconds = absl::ToDoubleSeconds(absl::Now() - start);

  if (request.route_only) {
    ffn.Route(input, workspace_, stats);
    result.router_logits = workspace_.router_logits();
  } else {
    const Matrix output(output_.Grow(wire.rows * wire.cols), wire.rows,
                        wire.cols);
    MOE_RETURN_IF_ERROR(
        ffn.Forward(input, request.routing.has_value() ? &given : nullptr,
                    workspace_, output, stats));
    result.output = output;
  }
  result.routing = workspace_.routing();
  return absl::OkStatus();
}

}  // namespace moe
