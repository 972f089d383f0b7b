#include "server/shards/sharded_experts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/compute_turn.h"
#include "experts/expert_workspace.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/shards/attempt_plan.h"
#include "server/shards/shard_client.h"
#include "server/shards/shard_message.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsBetween(SteadyTime begin, SteadyTime end) {
  return std::chrono::duration<double>(end - begin).count();
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

// The rows of local experts, taken together, and their outputs.
struct ShardedExperts::Memory {
  ShardRequestWriter writer;
  std::vector<int32_t> local_offsets;
  std::vector<int32_t> local_rows;
  std::vector<float> local_scales;
  AlignedBuffer<float> local_outputs;
};

class ShardedExperts::Run {
 public:
  Run(const ShardedExperts& experts, const ExpertBatch& batch,
      ExpertWorkspace& workspace, Matrix out, ExpertFailures& failures)
      : layer_(experts.layer_),
        local_(experts.local_.get()),
        fleet_(experts.fleet_),
        homes_(experts.CurrentHomes()),
        batch_(batch),
        workspace_(workspace),
        memory_(workspace.Scratch<Memory>()),
        out_(out),
        failures_(failures),
        deadline_(std::min(batch.deadline,
                           Clock::now() + absl::ToChronoNanoseconds(
                                              fleet_.options().timeout))) {}

  void Execute();

 private:
  // What is asked of one shard.
  struct Call {
    explicit Call(SteadyTime deadline) : plan(deadline) {}

    ShardClient* shard = nullptr;
    std::vector<int32_t> experts;
    int64_t rows = 0;  // assignments
    grpc::ByteBuffer request;
    AttemptPlan plan;
    SteadyTime start;
    std::vector<std::shared_ptr<ShardAttempt>> running;
    std::vector<size_t> tried;  // targets
    absl::Status status;        // of the last attempt that failed
    bool done = false;
    double seconds = 0;  // once done
  };

  // Decides who runs which expert.
  void Divide();
  void Gather();
  void RunLocal();
  void Attempt(Call& call, size_t index);
  // Until all calls are done.
  void TakeResponses();
  void TakeEnded(const std::shared_ptr<ShardAttempt>& attempt);
  // Why what has not been answered by deadline_ is given up.
  absl::Status Late() const;
  void MakeDue();
  void GiveUp(Call& call, absl::Status status);
  void Fail(absl::Span<const int32_t> experts, const absl::Status& status);
  void CountTimes() const;

  const SpreadLayer& layer_;
  const ExpertShard* const local_;
  ShardFleet& fleet_;
  const std::shared_ptr<const Homes> homes_;
  const ExpertBatch& batch_;
  ExpertWorkspace& workspace_;
  Memory& memory_;
  const Matrix out_;
  ExpertFailures& failures_;
  const SteadyTime deadline_;

  const std::shared_ptr<AttemptInbox> inbox_ = std::make_shared<AttemptInbox>();
  std::vector<Call> calls_;
  std::vector<int32_t> local_experts_;
};

void ShardedExperts::Run::Execute() {
  Divide();
  for (size_t i = 0; i < calls_.size(); ++i) {
    calls_[i].request = memory_.writer.Write(layer_, batch_, calls_[i].experts,
                                             fleet_.options().wire_dtype);
    Attempt(calls_[i], i);
  }
  RunLocal();
  {
    const AwayFromCompute away(workspace_.turn());
    TakeResponses();
  }
  for (const Call& call : calls_) {
    if (call.status.ok()) continue;
    Fail(call.experts, ForCaller(call.shard->name(), call.status));
  }
  CountTimes();
}

void ShardedExperts::Run::Divide() {
  // [shards] rows given to each; experts with one home first, so that those
  // with several go where there is least to do.
  std::vector<int64_t> rows(homes_->shards->clients.size());
  std::vector<std::vector<int32_t>> experts(rows.size());
  for (const bool one_home : {true, false}) {
    for (int32_t e = 0; e < layer_.num_experts(); ++e) {
      const int64_t count = RowsOf(batch_, e);
      const auto& homes = homes_->of_expert[static_cast<size_t>(e)];
      if (count == 0 || (homes.size() <= 1) != one_home) continue;
      if (homes.empty()) {
        local_experts_.push_back(e);
        continue;
      }
      const auto load = [&](int shard) {
        const auto s = static_cast<size_t>(shard);
        return std::pair(!homes_->shards->clients[s]->up(), rows[s]);
      };
      const auto least = static_cast<size_t>(
          *std::min_element(homes.begin(), homes.end(),
                            [&](int a, int b) { return load(a) < load(b); }));
      rows[least] += count;
      experts[least].push_back(e);
    }
  }
  for (size_t s = 0; s < rows.size(); ++s) {
    if (rows[s] == 0) continue;
    std::sort(experts[s].begin(), experts[s].end());
    Call& call = calls_.emplace_back(deadline_);
    call.shard = homes_->shards->clients[s].get();
    call.experts = std::move(experts[s]);
    call.rows = rows[s];
  }
}

void ShardedExperts::Run::Gather() {
  memory_.local_rows.clear();
  memory_.local_scales.clear();
  memory_.local_offsets.assign(batch_.offsets.size(), 0);
  auto next = local_experts_.begin();
  for (int32_t e = 0; e < layer_.num_experts(); ++e) {
    if (next != local_experts_.end() && *next == e) {
      ++next;
      const int32_t first = batch_.offsets[static_cast<size_t>(e)];
      const int64_t count = RowsOf(batch_, e);
      std::copy_n(batch_.rows.begin() + first, count,
                  std::back_inserter(memory_.local_rows));
      if (!batch_.input_scales.empty()) {
        std::copy_n(batch_.input_scales.begin() + first, count,
                    std::back_inserter(memory_.local_scales));
      }
    }
    memory_.local_offsets[static_cast<size_t>(e) + 1] =
        static_cast<int32_t>(memory_.local_rows.size());
  }
}

void ShardedExperts::Run::RunLocal() {
  if (local_experts_.empty()) return;
  Gather();
  const auto rows = static_cast<int64_t>(memory_.local_rows.size());
  const Matrix outputs(memory_.local_outputs.Grow(rows * out_.cols()), rows,
                       out_.cols());
  ExpertFailures failures;
  const absl::Status status =
      local_->Forward({.hidden_states = batch_.hidden_states,
                       .offsets = memory_.local_offsets,
                       .rows = memory_.local_rows,
                       .input_scales = memory_.local_scales,
                       .deadline = batch_.deadline},
                      workspace_, outputs, failures);
  if (!status.ok()) {
    // What shards answer meanwhile is as good as ever.
    Fail(local_experts_, status);
    return;
  }
  for (const ExpertFailures::Failure& failure : failures) {
    failures_.Add(failure.expert, failure.status);
  }
  for (const int32_t e : local_experts_) {
    const auto i = static_cast<size_t>(e);
    std::copy_n(outputs.Row(memory_.local_offsets[i]),
                RowsOf(batch_, e) * out_.cols(), out_.Row(batch_.offsets[i]));
  }
}

void ShardedExperts::Run::Attempt(Call& call, size_t index) {
  auto attempt = std::make_shared<ShardAttempt>();
  attempt->call = index;
  call.shard->Start(attempt, call.request, call.rows, deadline_, call.tried,
                    inbox_);
  if (call.tried.empty()) call.start = attempt->start;
  call.tried.push_back(attempt->target);
  call.running.push_back(attempt);
  const double percentile = fleet_.options().hedge_percentile;
  call.plan.Started(attempt->start, percentile > 0 ? call.shard->UsualTime(
                                                         call.rows, percentile)
                                                   : absl::InfiniteDuration());
}

void ShardedExperts::Run::TakeResponses() {
  const auto open = [](const Call& call) { return !call.done; };
  while (std::any_of(calls_.begin(), calls_.end(), open)) {
    SteadyTime until = deadline_;
    for (const Call& call : calls_) {
      if (open(call)) until = std::min(until, call.plan.next());
    }
    for (const auto& attempt : inbox_->Take(until)) TakeEnded(attempt);
    MakeDue();
  }
}

void ShardedExperts::Run::TakeEnded(
    const std::shared_ptr<ShardAttempt>& attempt) {
  Call& call = calls_[attempt->call];
  call.running.erase(
      std::remove(call.running.begin(), call.running.end(), attempt),
      call.running.end());
  if (call.done) return;
  absl::Status status = attempt->status;
  if (status.ok()) {
    status = ReadShardResponse(attempt->response, batch_, call.experts, out_);
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
  if (call.plan.Failed(call.status, Clock::now())) return;
  // gRPC's clock may be a little ahead of ours.
  GiveUp(call, absl::IsDeadlineExceeded(call.status) ? Late() : call.status);
}

absl::Status ShardedExperts::Run::Late() const {
  return batch_.deadline <= deadline_
             ? absl::DeadlineExceededError("not answered in time")
             : absl::InternalError("no answer within --shard_timeout");
}

void ShardedExperts::Run::MakeDue() {
  const SteadyTime now = Clock::now();
  for (size_t i = 0; i < calls_.size(); ++i) {
    Call& call = calls_[i];
    if (call.done) continue;
    const ShardMetrics& metrics = call.shard->metrics();
    switch (call.plan.At(now)) {
      case AttemptPlan::Step::kWait:
        break;
      case AttemptPlan::Step::kRetry:
        metrics.retries->Increment();
        Attempt(call, i);
        break;
      case AttemptPlan::Step::kHedge:
        metrics.hedges->Increment();
        Attempt(call, i);
        break;
      case AttemptPlan::Step::kGiveUp:
        GiveUp(call, Late());
        break;
    }
  }
}

void ShardedExperts::Run::GiveUp(Call& call, absl::Status status) {
  for (const auto& attempt : call.running) attempt->context.TryCancel();
  call.status = std::move(status);
  call.done = true;
  call.seconds = SecondsBetween(call.start, Clock::now());
}

void ShardedExperts::Run::Fail(absl::Span<const int32_t> experts,
                               const absl::Status& status) {
  for (const int32_t expert : experts) failures_.Add(expert, status);
}

void ShardedExperts::Run::CountTimes() const {
  if (calls_.empty()) return;
  double slowest = 0;
  double sum = 0;
  for (const Call& call : calls_) {
    slowest = std::max(slowest, call.seconds);
    sum += call.seconds;
  }
  fleet_.metrics().ShardsDone(slowest,
                              sum / static_cast<double>(calls_.size()));
}

ShardedExperts::ShardedExperts(SpreadLayer layer,
                               std::unique_ptr<ExpertShard> local,
                               ShardFleet* fleet)
    : layer_(std::move(layer)), local_(std::move(local)), fleet_(*fleet) {
  fleet_.Register(&layer_);
}

ShardedExperts::~ShardedExperts() { fleet_.Unregister(&layer_); }

absl::Status ShardedExperts::Forward(const ExpertBatch& batch,
                                     ExpertWorkspace& workspace, Matrix out,
                                     ExpertFailures& failures) const {
  failures.Clear();
  Run(*this, batch, workspace, out, failures).Execute();
  return absl::OkStatus();
}

std::shared_ptr<const ShardedExperts::Homes> ShardedExperts::CurrentHomes()
    const {
  std::shared_ptr<const ShardSet> shards = fleet_.shards();
  {
    absl::MutexLock lock(&mutex_);
    if (homes_ != nullptr && homes_->shards == shards) return homes_;
  }
  auto homes = std::make_shared<Homes>();
  for (int e = 0; e < layer_.num_experts(); ++e) {
    auto& of_expert = homes->of_expert.emplace_back();
    if (std::binary_search(layer_.local_ids.begin(), layer_.local_ids.end(),
                           e)) {
      continue;
    }
    for (const int shard :
         shards->placement.ShardsOf(layer_.model, layer_.layer, e)) {
      of_expert.push_back(shard);
    }
  }
  homes->shards = std::move(shards);
  absl::MutexLock lock(&mutex_);
  homes_ = homes;
  return homes;
}

}  // namespace moe
