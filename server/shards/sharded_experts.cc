#include "server/shards/sharded_experts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

// Of one call, hedges included.
constexpr size_t kMaxAttempts = 4;
// Before an attempt that follows a failure; the first is to pass by a replica
// that has gone, the later ones give gRPC time to notice that.
constexpr std::chrono::milliseconds kRetryDelays[] = {
    std::chrono::milliseconds(0), std::chrono::milliseconds(2),
    std::chrono::milliseconds(10)};
// Hedging sooner would be about noise.
constexpr std::chrono::milliseconds kMinHedgeDelay{1};

double SecondsBetween(SteadyTime begin, SteadyTime end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Whether another replica may answer where this one did not.
bool MayRetry(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return false;
    default:
      return true;
  }
}

// What a caller of the front is told. What gRPC says of connections stays
// inside: it has addresses.
absl::Status ForCaller(const std::string& shard, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
      return absl::Status(
          status.code(), absl::StrCat("shard ", shard, ": ", status.message()));
    case absl::StatusCode::kUnavailable:
      return absl::UnavailableError(
          absl::StrCat("shard ", shard, ": no replica answers"));
    default:
      return absl::UnavailableError(
          absl::StrCat("shard ", shard, ": ", status.message()));
  }
}

}  // namespace

ShardedExperts::ShardedExperts(SpreadLayer layer,
                               std::unique_ptr<ExpertShard> local,
                               ShardFleet* fleet)
    : layer_(std::move(layer)), local_(std::move(local)), fleet_(*fleet) {
  fleet_.Register(&layer_);
}

ShardedExperts::~ShardedExperts() { fleet_.Unregister(&layer_); }

absl::Status ShardedExperts::Forward(const ExpertBatch& batch, Matrix out) {
  failed_.clear();
  inbox_ = std::make_shared<AttemptInbox>();
  const SteadyTime start = Clock::now();
  const auto timeout = absl::ToChronoNanoseconds(fleet_.options().timeout);
  deadline_ = std::min(batch.deadline, start + timeout);
  FollowPlacement();
  Divide(batch);
  for (size_t i = 0; i < calls_.size(); ++i) {
    calls_[i].request = writer_.Write(layer_, batch, calls_[i].experts,
                                      fleet_.options().wire_dtype);
    Attempt(calls_[i], i);
  }
  RunLocal(batch, out);

  const auto open = [](const Call& call) { return !call.done; };
  while (std::any_of(calls_.begin(), calls_.end(), open)) {
    SteadyTime until = deadline_;
    for (const Call& call : calls_) {
      if (open(call)) until = std::min(until, call.next);
    }
    for (const auto& attempt : inbox_->Take(until)) {
      TakeEnded(attempt, batch, out);
    }
    MakeDue(batch);
  }
  double slowest = 0;
  double sum = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (!calls_[i].status.ok()) failed_.push_back(i);
    slowest = std::max(slowest, calls_[i].seconds);
    sum += calls_[i].seconds;
  }
  if (!calls_.empty()) {
    fleet_.metrics().ShardsDone(slowest,
                                sum / static_cast<double>(calls_.size()));
  }
  return absl::OkStatus();
}

absl::Status ShardedExperts::ExpertStatus(int64_t expert) const {
  for (const size_t i : failed_) {
    const Call& call = calls_[i];
    if (std::binary_search(call.experts.begin(), call.experts.end(), expert)) {
      return ForCaller(call.shard->name(), call.status);
    }
  }
  return absl::OkStatus();
}

void ShardedExperts::FollowPlacement() {
  std::shared_ptr<const ShardSet> shards = fleet_.shards();
  if (shards == shards_) return;
  shards_ = std::move(shards);
  shards_of_.clear();
  for (int e = 0; e < layer_.num_experts(); ++e) {
    auto& of_expert = shards_of_.emplace_back();
    if (std::binary_search(layer_.local_ids.begin(), layer_.local_ids.end(),
                           e)) {
      continue;
    }
    for (const int shard :
         shards_->placement.ShardsOf(layer_.model, layer_.layer, e)) {
      of_expert.push_back(shard);
    }
  }
}

void ShardedExperts::Divide(const ExpertBatch& batch) {
  // [shards] rows given to each; experts with one home first, so that those
  // with several go where there is least to do.
  std::vector<int64_t> rows(shards_->clients.size());
  std::vector<std::vector<int32_t>> experts(rows.size());
  local_experts_.clear();
  for (const bool one_home : {true, false}) {
    for (int32_t e = 0; e < layer_.num_experts(); ++e) {
      const int64_t count = RowsOf(batch, e);
      const auto& homes = shards_of_[static_cast<size_t>(e)];
      if (count == 0 || (homes.size() <= 1) != one_home) continue;
      if (homes.empty()) {
        local_experts_.push_back(e);
        continue;
      }
      const auto load = [&](int shard) {
        const auto s = static_cast<size_t>(shard);
        return std::pair(!shards_->clients[s]->up(), rows[s]);
      };
      const auto least = static_cast<size_t>(
          *std::min_element(homes.begin(), homes.end(),
                            [&](int a, int b) { return load(a) < load(b); }));
      rows[least] += count;
      experts[least].push_back(e);
    }
  }
  calls_.clear();
  for (size_t s = 0; s < rows.size(); ++s) {
    if (rows[s] == 0) continue;
    std::sort(experts[s].begin(), experts[s].end());
    Call& call = calls_.emplace_back();
    call.shard = shards_->clients[s].get();
    call.experts = std::move(experts[s]);
    call.rows = rows[s];
  }
}

void ShardedExperts::RunLocal(const ExpertBatch& batch, Matrix out) {
  if (local_experts_.empty()) return;
  local_rows_.clear();
  local_scales_.clear();
  local_offsets_.assign(batch.offsets.size(), 0);
  auto next = local_experts_.begin();
  for (int32_t e = 0; e < layer_.num_experts(); ++e) {
    if (next != local_experts_.end() && *next == e) {
      ++next;
      const int32_t first = batch.offsets[static_cast<size_t>(e)];
      const int64_t count = RowsOf(batch, e);
      std::copy_n(batch.rows.begin() + first, count,
                  std::back_inserter(local_rows_));
      if (!batch.input_scales.empty()) {
        std::copy_n(batch.input_scales.begin() + first, count,
                    std::back_inserter(local_scales_));
      }
    }
    local_offsets_[static_cast<size_t>(e) + 1] =
        static_cast<int32_t>(local_rows_.size());
  }
  const auto rows = static_cast<int64_t>(local_rows_.size());
  const Matrix outputs(local_outputs_.Grow(rows * out.cols()), rows,
                       out.cols());
  // Experts in this process do not fail.
  local_
      ->Forward({.hidden_states = batch.hidden_states,
                 .offsets = local_offsets_,
                 .rows = local_rows_,
                 .input_scales = local_scales_},
                outputs)
      .IgnoreError();
  for (const int32_t e : local_experts_) {
    const auto i = static_cast<size_t>(e);
    std::copy_n(outputs.Row(local_offsets_[i]), RowsOf(batch, e) * out.cols(),
                out.Row(batch.offsets[i]));
  }
}

void ShardedExperts::Attempt(Call& call, size_t index) {
  auto attempt = std::make_shared<ShardAttempt>();
  attempt->call = index;
  call.shard->Start(attempt, call.request, call.rows, deadline_, call.tried,
                    inbox_);
  if (call.tried.empty()) call.start = attempt->start;
  call.tried.push_back(attempt->target);
  call.running.push_back(attempt);
  call.next = SteadyTime::max();
  const double percentile = fleet_.options().hedge_percentile;
  if (percentile <= 0 || call.tried.size() >= kMaxAttempts) return;
  const absl::Duration usual = call.shard->UsualTime(call.rows, percentile);
  if (usual == absl::InfiniteDuration()) return;
  call.next_is_hedge = true;
  call.next =
      attempt->start + std::max<Clock::duration>(
                           kMinHedgeDelay, absl::ToChronoNanoseconds(usual));
}

void ShardedExperts::TakeEnded(const std::shared_ptr<ShardAttempt>& attempt,
                               const ExpertBatch& batch, Matrix out) {
  Call& call = calls_[attempt->call];
  call.running.erase(
      std::remove(call.running.begin(), call.running.end(), attempt),
      call.running.end());
  if (call.done) return;
  absl::Status status = attempt->status;
  if (status.ok()) {
    status = ReadShardAnswer(attempt->answer, batch, call.experts, out);
  }
  if (status.ok()) {
    call.shard->Answered(*attempt);
    call.status = absl::OkStatus();
    call.done = true;
    call.seconds = SecondsBetween(call.start, attempt->end);
    for (const auto& other : call.running) other->context.TryCancel();
    return;
  }
  call.shard->Failed(status);
  call.status = std::move(status);
  if (!call.running.empty()) return;
  // gRPC's clock may be a little ahead of ours.
  if (absl::IsDeadlineExceeded(call.status)) {
    GiveUp(call, Late(batch));
    return;
  }
  if (call.tried.size() >= kMaxAttempts || !MayRetry(call.status)) {
    GiveUp(call, call.status);
    return;
  }
  call.next_is_hedge = false;
  call.next = Clock::now() + kRetryDelays[call.tried.size() - 1];
}

absl::Status ShardedExperts::Late(const ExpertBatch& batch) const {
  return batch.deadline <= deadline_
             ? absl::DeadlineExceededError("not answered in time")
             : absl::InternalError("no answer within --shard_timeout");
}

void ShardedExperts::MakeDue(const ExpertBatch& batch) {
  const SteadyTime now = Clock::now();
  for (size_t i = 0; i < calls_.size(); ++i) {
    Call& call = calls_[i];
    if (call.done) continue;
    if (now >= deadline_) {
      GiveUp(call, Late(batch));
    } else if (now >= call.next) {
      const ShardMetrics& metrics = call.shard->metrics();
      (call.next_is_hedge ? metrics.hedges : metrics.retries)->Increment();
      Attempt(call, i);
    }
  }
}

void ShardedExperts::GiveUp(Call& call, absl::Status status) {
  for (const auto& attempt : call.running) attempt->context.TryCancel();
  call.status = std::move(status);
  call.done = true;
  call.seconds = SecondsBetween(call.start, Clock::now());
}

}  // namespace moe
