#include "server/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "experts/base/check.h"

namespace moe {

Engine::Engine(const EngineOptions& options, Executor* executor,
               const Kernels& kernels, Metrics* metrics)
    : options_(options), metrics_(metrics), queue_(options.batching) {
  MOE_CHECK(options.batches_in_flight >= 1);
  for (int64_t i = 0; i < options.batches_in_flight; ++i) {
    runners_.push_back(std::make_unique<BatchRunner>(executor, kernels, &turn_,
                                                     options.clock, metrics));
    threads_.emplace_back(
        [this, runner = runners_.back().get()] { Run(*runner); });
  }
}

Engine::~Engine() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status Engine::Submit(EngineRequest* request) {
  const SteadyTime now = options_.clock->Now();
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
  double rate = 0;
  {
    absl::MutexLock lock(&mutex_);
    tokens = queue_.tokens();
    rate = tokens_per_second_;
  }
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

void Engine::Run(BatchRunner& runner) {
  Batch batch;
  while (NextBatch(&batch)) {
    const SteadyTime start = options_.clock->Now();
    FinishDropped(batch, start);
    if (batch.slices.empty()) {
      turn_.GiveUp();
      continue;
    }
    runner.Compute(batch);
    turn_.GiveUp();
    runner.Encode(batch);
    const SteadyTime end = options_.clock->Now();
    CountBatch(batch.tokens, start, end);
    for (const BatchSlice& slice : batch.slices) {
      Finish(*slice.item->owner(), end);
    }
  }
}

bool Engine::NextBatch(Batch* batch) {
  while (true) {
    if (!WaitForWork()) return false;
    turn_.Take();
    // Others may have taken it meanwhile.
    if (TakeBatch(batch)) return true;
    turn_.GiveUp();
  }
}

std::optional<SteadyTime> Engine::StartTime() const {
  const std::optional<SteadyTime> start = queue_.StartTime(idle_);
  return start.has_value() && stopping_ ? SteadyTime::min() : start;
}

bool Engine::WaitForWork() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const std::optional<SteadyTime> start = StartTime();
    if (!start.has_value()) {
      if (stopping_) return false;
      if (in_flight_ == 0) idle_ = true;
      work_.Wait(&mutex_);
      continue;
    }
    const SteadyTime now = options_.clock->Now();
    if (*start <= now) return true;
    work_.WaitWithTimeout(&mutex_, absl::FromChrono(*start - now));
  }
}

bool Engine::TakeBatch(Batch* batch) {
  absl::MutexLock lock(&mutex_);
  const SteadyTime now = options_.clock->Now();
  const std::optional<SteadyTime> start = StartTime();
  if (!start.has_value() || *start > now) return false;
  idle_ = false;
  queue_.Pop(
      now, [now](const BatchItem& item) { return item.owner()->Wanted(now); },
      batch);
  for (const BatchSlice& slice : batch->slices) {
    // The last part takes over what the queue had.
    if (!slice.last) slice.item->owner()->Hold();
  }
  if (!batch->slices.empty()) ++in_flight_;
  if (!queue_.empty()) work_.Signal();
  metrics_->SetQueueTokens(queue_.tokens());
  return true;
}

void Engine::FinishDropped(const Batch& batch, SteadyTime now) {
  for (const BatchItem* item : batch.dropped) {
    EngineRequest& request = *item->owner();
    {
      absl::MutexLock lock(&request.mutex_);
      const absl::Status unwanted = request.CheckWanted(now);
      if (request.Fail(unwanted)) CountUnwanted(unwanted, *metrics_);
    }
    Finish(request, now);
  }
}

void Engine::Finish(EngineRequest& request, SteadyTime now) {
  if (!request.LetGo()) return;
  const absl::Status status = request.status();
  if (LayerStatistics* statistics = request.call().layer.statistics) {
    EventTimes& times =
        status.ok() ? statistics->succeeded : statistics->failed;
    times.Add(1, now - request.item_.arrival());
  }
  request.observer_.OnFinished(status);
}

void Engine::CountBatch(int64_t tokens, SteadyTime start, SteadyTime end) {
  absl::MutexLock lock(&mutex_);
  --in_flight_;
  // A batch that overlaps the last one has the time since the end of that.
  const std::chrono::duration<double> taken =
      end - std::max(start, last_batch_end_);
  last_batch_end_ = end;
  const double rate =
      static_cast<double>(tokens) / std::max(taken.count(), 1e-9);
  // A running mean over the last batches.
  tokens_per_second_ =
      tokens_per_second_ > 0
          ? tokens_per_second_ + (rate - tokens_per_second_) / 8
          : rate;
}

}  // namespace moe
