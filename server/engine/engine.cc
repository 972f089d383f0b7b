#include "server/engine/engine.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

double Seconds(SteadyTime::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

EngineRequest& RequestOf(const BatchSlice& slice) {
  return *slice.item->owner();
}

void CountUnwanted(const absl::Status& status, Metrics& metrics) {
  metrics.Rejected(absl::IsCancelled(status) ? Rejection::kCancelled
                                             : Rejection::kExpired);
}

}  // namespace

absl::Status EngineRequest::CheckWanted(SteadyTime now) const {
  if (observer_.Cancelled()) {
    return absl::CancelledError("cancelled by the caller");
  }
  if (now >= deadline()) {
    return absl::DeadlineExceededError("deadline passed before the answer");
  }
  return absl::OkStatus();
}

Engine::Engine(const EngineOptions& options, ExpertWorkspace* workspace,
               Metrics* metrics)
    : options_(options),
      metrics_(metrics),
      workspace_(workspace),
      queue_(options.batching) {
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_.Signal();
  thread_.join();
}

absl::Status Engine::Submit(EngineRequest* request) {
  const SteadyTime now = Now();
  if (absl::Status status = request->CheckWanted(now); !status.ok()) {
    CountUnwanted(status, *metrics_);
    return status;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      metrics_->Rejected(Rejection::kDraining);
      return absl::UnavailableError("server is draining; retry elsewhere");
    }
    const int64_t bytes = bytes_.load(std::memory_order_relaxed);
    if (bytes > 0 && bytes + request->bytes() > options_.max_queue_bytes) {
      metrics_->Rejected(Rejection::kQueueFull);
      return absl::ResourceExhaustedError(absl::StrCat(
          "queue is full: ", bytes, " bytes of requests and answers of ",
          options_.max_queue_bytes, "; retry later"));
    }
    if (!queue_.Push(&request->item_, now)) {
      metrics_->Rejected(Rejection::kQueueFull);
      return absl::ResourceExhaustedError(absl::StrCat(
          "queue is full: ", queue_.tokens(), " tokens waiting of ",
          options_.batching.max_queue_tokens, "; retry later"));
    }
    bytes_.fetch_add(request->bytes(), std::memory_order_relaxed);
    metrics_->AddQueueBytes(request->bytes());
    metrics_->SetQueueTokens(queue_.tokens());
  }
  work_.Signal();
  return absl::OkStatus();
}

std::chrono::milliseconds Engine::RetryAfter() const {
  constexpr std::chrono::milliseconds kMin{1};
  constexpr std::chrono::milliseconds kMax{10'000};
  int64_t tokens = 0;
  {
    absl::MutexLock lock(&mutex_);
    tokens = queue_.tokens();
  }
  const double rate = tokens_per_second_.load(std::memory_order_relaxed);
  if (rate <= 0) return kMin;
  const double millis = 1e3 * static_cast<double>(tokens) / rate;
  return std::clamp(
      std::chrono::milliseconds(static_cast<int64_t>(std::min(millis, 1e6))),
      kMin, kMax);
}

void Engine::BeginDrain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

void Engine::Run() {
  Batch batch;
  bool idle = true;
  while (NextBatch(idle, &batch)) {
    RunBatch(batch);
    idle = false;
  }
}

bool Engine::NextBatch(bool idle, Batch* batch) {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const SteadyTime now = Now();
    const std::optional<SteadyTime> start = queue_.StartTime(idle);
    if (!start.has_value()) {
      if (stopping_) return false;
      idle = true;
      work_.Wait(&mutex_);
    } else if (*start <= now || stopping_) {
      queue_.Pop(
          now,
          [now](const BatchItem& item) {
            const EngineRequest& request = *item.owner();
            return request.status_.ok() && request.CheckWanted(now).ok();
          },
          batch);
      metrics_->SetQueueTokens(queue_.tokens());
      return true;
    } else {
      work_.WaitWithTimeout(&mutex_, absl::FromChrono(*start - now));
    }
  }
}

double Engine::SecondsSince(SteadyTime start) const {
  return Seconds(Now() - start);
}

void Engine::FinishDropped(const Batch& batch, SteadyTime now) {
  for (const BatchItem* item : batch.dropped) {
    EngineRequest& request = *item->owner();
    if (request.status_.ok()) {
      request.status_ = request.CheckWanted(now);
      CountUnwanted(request.status_, *metrics_);
    }
    if (LayerStatistics* statistics = request.call().layer.statistics) {
      statistics->failed.Add(1, now - item->arrival());
    }
    request.observer_.OnFinished(request.status_);
  }
}

void Engine::RunBatch(const Batch& batch) {
  const SteadyTime start = Now();
  FinishDropped(batch, start);
  if (batch.slices.empty()) return;
  for (const BatchSlice& slice : batch.slices) {
    EngineRequest& request = RequestOf(slice);
    if (slice.first == 0) {
      request.waiting_since_ = slice.item->arrival();
      metrics_->QueueWait(Seconds(start - slice.item->arrival()));
    }
    request.timing_.queued += start - request.waiting_since_;
  }

  // Keeps the model while requests finish.
  const ServedLayer layer = RequestOf(batch.slices.front()).call().layer;
  const bool route_only = batch.slices.front().item->key().route_only;
  EngineResult result;
  ForwardStats stats;
  const absl::Status computed = Compute(batch, &result, &stats);
  const SteadyTime encode_start = Now();
  EncodeBatch(batch, computed, result, encode_start);
  if (computed.ok() && layer.metrics != nullptr) {
    metrics_->BatchDone(stats, decode_seconds_, SecondsSince(encode_start),
                        batch.tokens,
                        static_cast<int64_t>(batch.slices.size()));
    if (!route_only) {
      layer.metrics->BatchDone(stats, batch.tokens,
                               workspace_.expert_offsets());
    }
  }
  // A running mean over the last batches.
  const double rate =
      static_cast<double>(batch.tokens) / std::max(SecondsSince(start), 1e-9);
  const double mean = tokens_per_second_.load(std::memory_order_relaxed);
  tokens_per_second_.store(mean > 0 ? mean + (rate - mean) / 8 : rate,
                           std::memory_order_relaxed);
  if (layer.statistics != nullptr) {
    CountStatistics(batch, start, encode_start, Now());
  }
  for (const BatchSlice& slice : batch.slices) {
    if (!slice.last) continue;
    const EngineRequest& request = RequestOf(slice);
    request.observer_.OnFinished(request.status_);
  }
}

void Engine::DecodeBatch(const Batch& batch, Matrix input,
                         MatrixView<int32_t> ids, Matrix weights) {
  const SteadyTime start = Now();
  int64_t row = 0;
  for (const BatchSlice& slice : batch.slices) {
    const RequestCodec& codec = RequestOf(slice).codec_;
    codec.Decode(slice.first, input.Rows(row, slice.count));
    if (slice.item->key().given_k > 0) {
      codec.DecodeRouting(slice.first, ids.Rows(row, slice.count),
                          weights.Rows(row, slice.count));
    }
    row += slice.count;
  }
  decoded_ = Now();
  decode_seconds_ = Seconds(decoded_ - start);
}

absl::Status Engine::Compute(const Batch& batch, EngineResult* result,
                             ForwardStats* stats) {
  // What is the same for all requests of a batch.
  const BatchKey& key = batch.slices.front().item->key();
  const FfnLayer& ffn = RequestOf(batch.slices.front()).call().ffn();
  const int64_t tokens = batch.tokens;
  const int64_t d_model = ffn.d_model();
  const int64_t given_k = key.given_k;
  const Matrix input(input_.Grow(tokens * d_model), tokens, d_model);
  const MatrixView<int32_t> ids(given_ids_.Grow(tokens * given_k), tokens,
                                given_k);
  const Matrix weights(given_weights_.Grow(tokens * given_k), tokens, given_k);
  DecodeBatch(batch, input, ids, weights);

  SteadyTime deadline = SteadyTime::min();
  for (const BatchSlice& slice : batch.slices) {
    deadline = std::max(deadline, slice.item->deadline());
  }
  workspace_.SetDeadline(deadline);
  if (key.route_only) {
    ffn.Route(input, workspace_, *stats);
    result->router_logits = workspace_.router_logits();
  } else {
    const Routing given{.ids = ids, .weights = weights};
    const Matrix output(output_.Grow(tokens * d_model), tokens, d_model);
    MOE_RETURN_IF_ERROR(ffn.Forward(input, given_k > 0 ? &given : nullptr,
                                    workspace_, output, *stats));
    result->output = output;
  }
  result->routing = workspace_.routing();
  return absl::OkStatus();
}

void Engine::EncodeBatch(const Batch& batch, const absl::Status& computed,
                         const EngineResult& result, SteadyTime now) {
  // What was not computed, as the routing of a dense layer, has no rows.
  const auto rows_of = [](auto matrix, int64_t first, int64_t count) {
    return matrix.rows() > 0 ? matrix.Rows(first, count) : matrix;
  };
  int64_t row = 0;
  for (const BatchSlice& slice : batch.slices) {
    EngineRequest& request = RequestOf(slice);
    const int64_t first = row;
    row += slice.count;
    request.timing_.computed += now - decoded_;
    request.waiting_since_ = now;
    request.status_ = computed;
    if (!computed.ok()) continue;
    request.status_ = request.CheckWanted(now);
    if (!request.status_.ok()) {
      CountUnwanted(request.status_, *metrics_);
      continue;
    }
    request.status_ = CheckExperts(first, slice.count);
    if (!request.status_.ok()) continue;
    request.codec_.Encode(
        slice.first,
        {.output = rows_of(result.output, first, slice.count),
         .routing = {.ids = rows_of(result.routing.ids, first, slice.count),
                     .weights =
                         rows_of(result.routing.weights, first, slice.count)},
         .router_logits = rows_of(result.router_logits, first, slice.count),
         .left_out = LeftOut(first, slice.count),
         .timing = request.timing_});
  }
}

absl::Status Engine::CheckExperts(int64_t first, int64_t count) const {
  const absl::Span<const int32_t> failed = workspace_.failed_experts();
  if (failed.empty()) return absl::OkStatus();
  for (const int32_t expert :
       failed.subspan(static_cast<size_t>(first), static_cast<size_t>(count))) {
    if (expert >= 0) return workspace_.failures().StatusOf(expert);
  }
  return absl::OkStatus();
}

int64_t Engine::LeftOut(int64_t first, int64_t count) const {
  const absl::Span<const int32_t> left_out = workspace_.left_out();
  if (left_out.empty()) return 0;
  const auto begin = left_out.begin() + first;
  const auto sum = std::accumulate(begin, begin + count, int64_t{0});
  if (sum > 0) metrics_->LeftOut(sum);
  return sum;
}

void Engine::CountStatistics(const Batch& batch, SteadyTime start,
                             SteadyTime encode, SteadyTime end) const {
  const EngineRequest& any = RequestOf(batch.slices.front());
  LayerStatistics& statistics = *any.call().layer.statistics;
  const auto decoding = std::chrono::duration_cast<SteadyTime::duration>(
      std::chrono::duration<double>(decode_seconds_));
  statistics.decoded.Add(1, decoding);
  statistics.computed.Add(1, encode - start - decoding);
  statistics.encoded.Add(1, end - encode);
  statistics.tokens.fetch_add(static_cast<uint64_t>(batch.tokens),
                              std::memory_order_relaxed);
  statistics.last_milliseconds.store(absl::ToUnixMillis(absl::Now()),
                                     std::memory_order_relaxed);
  for (const BatchSlice& slice : batch.slices) {
    if (slice.first == 0) {
      statistics.queued.Add(1, start - slice.item->arrival());
    }
    if (slice.last) {
      EventTimes& times = RequestOf(slice).status_.ok() ? statistics.succeeded
                                                        : statistics.failed;
      times.Add(1, end - slice.item->arrival());
    }
  }
}

}  // namespace moe
