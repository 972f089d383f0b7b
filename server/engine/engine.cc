#include "server/engine/engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double SecondsSince(SteadyTime start) { return Seconds(Clock::now() - start); }

EngineRequest& RequestOf(const BatchSlice& slice) {
  return *static_cast<EngineRequest*>(slice.item);
}

// DEADLINE_EXCEEDED or CANCELLED if nobody waits for the answer.
absl::Status CheckWanted(const EngineRequest& request, SteadyTime now) {
  if (request.Cancelled()) {
    return absl::CancelledError("cancelled by the caller");
  }
  if (now >= request.deadline) {
    return absl::DeadlineExceededError("deadline passed before the answer");
  }
  return absl::OkStatus();
}

void CountUnwanted(const absl::Status& status, Metrics& metrics) {
  metrics.Rejected(absl::IsCancelled(status) ? Rejection::kCancelled
                                             : Rejection::kExpired);
}

}  // namespace

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
  const SteadyTime now = Clock::now();
  if (absl::Status status = CheckWanted(*request, now); !status.ok()) {
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
    if (bytes > 0 && bytes + request->bytes > options_.max_queue_bytes) {
      metrics_->Rejected(Rejection::kQueueFull);
      return absl::ResourceExhaustedError(absl::StrCat(
          "queue is full: ", bytes, " bytes of requests and answers of ",
          options_.max_queue_bytes, "; retry later"));
    }
    if (!queue_.Push(request, now)) {
      metrics_->Rejected(Rejection::kQueueFull);
      return absl::ResourceExhaustedError(absl::StrCat(
          "queue is full: ", queue_.tokens(), " tokens waiting of ",
          options_.batching.max_queue_tokens, "; retry later"));
    }
    bytes_.fetch_add(request->bytes, std::memory_order_relaxed);
    metrics_->AddQueueBytes(request->bytes);
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
    const SteadyTime now = Clock::now();
    const std::optional<SteadyTime> start = queue_.StartTime(idle);
    if (!start.has_value()) {
      if (stopping_) return false;
      idle = true;
      work_.Wait(&mutex_);
    } else if (*start <= now || stopping_) {
      queue_.Pop(
          now,
          [now](const BatchItem& item) {
            const auto& request = static_cast<const EngineRequest&>(item);
            return request.status_.ok() && CheckWanted(request, now).ok();
          },
          batch);
      metrics_->SetQueueTokens(queue_.tokens());
      return true;
    } else {
      work_.WaitWithTimeout(&mutex_, absl::FromChrono(*start - now));
    }
  }
}

void Engine::RunBatch(const Batch& batch) {
  const SteadyTime start = Clock::now();
  for (BatchItem* item : batch.dropped) {
    auto& request = *static_cast<EngineRequest*>(item);
    if (request.status_.ok()) {
      request.status_ = CheckWanted(request, start);
      CountUnwanted(request.status_, *metrics_);
    }
    if (LayerStatistics* statistics = request.layer().statistics) {
      statistics->failed.Add(1, start - request.arrival());
    }
    request.Finish(request.status_);
  }
  if (batch.slices.empty()) return;
  for (const BatchSlice& slice : batch.slices) {
    EngineRequest& request = RequestOf(slice);
    if (slice.first == 0) {
      request.waiting_since_ = request.arrival();
      metrics_->QueueWait(Seconds(start - request.arrival()));
    }
    request.timing_.queued += start - request.waiting_since_;
  }

  // Keeps the model while requests finish.
  const ServedLayer layer = RequestOf(batch.slices.front()).layer();
  const bool route_only = batch.slices.front().item->key.route_only;
  EngineResult result;
  ForwardStats stats;
  const absl::Status computed =
      Compute(batch, RequestOf(batch.slices.front()), &result, &stats);
  const SteadyTime encode_start = Clock::now();
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
    CountStatistics(batch, start, encode_start, Clock::now());
  }
  for (const BatchSlice& slice : batch.slices) {
    if (slice.last) RequestOf(slice).Finish(RequestOf(slice).status_);
  }
}

absl::Status Engine::Compute(const Batch& batch, const EngineRequest& any,
                             EngineResult* result, ForwardStats* stats) {
  const FfnLayer& ffn = any.ffn();
  const int64_t tokens = batch.tokens;
  const int64_t d_model = ffn.d_model();
  const int64_t given_k = any.key.given_k;
  const Matrix input(input_.Grow(tokens * d_model), tokens, d_model);
  const MatrixView<int32_t> ids(given_ids_.Grow(tokens * given_k), tokens,
                                given_k);
  const Matrix weights(given_weights_.Grow(tokens * given_k), tokens, given_k);
  const SteadyTime start = Clock::now();
  int64_t row = 0;
  for (const BatchSlice& slice : batch.slices) {
    const EngineRequest& request = RequestOf(slice);
    request.Decode(slice.first, input.Rows(row, slice.count));
    if (given_k > 0) {
      request.DecodeRouting(slice.first, ids.Rows(row, slice.count),
                            weights.Rows(row, slice.count));
    }
    row += slice.count;
  }
  decoded_ = Clock::now();
  decode_seconds_ = Seconds(decoded_ - start);

  SteadyTime deadline = SteadyTime::min();
  for (const BatchSlice& slice : batch.slices) {
    deadline = std::max(deadline, slice.item->deadline);
  }
  workspace_.SetDeadline(deadline);
  if (any.key.route_only) {
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
    request.status_ = CheckWanted(request, now);
    if (!request.status_.ok()) {
      CountUnwanted(request.status_, *metrics_);
      continue;
    }
    request.status_ = CheckExperts(first, slice.count);
    if (!request.status_.ok()) continue;
    request.Encode(
        slice.first,
        {.output = rows_of(result.output, first, slice.count),
         .routing = {.ids = rows_of(result.routing.ids, first, slice.count),
                     .weights =
                         rows_of(result.routing.weights, first, slice.count)},
         .router_logits = rows_of(result.router_logits, first, slice.count),
         .left_out = LeftOut(first, slice.count)});
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
  LayerStatistics& statistics = *any.layer().statistics;
  const auto decoding = std::chrono::duration_cast<Clock::duration>(
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
