#include "server/engine/batch_runner.h"

#include <algorithm>
#include <numeric>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

double Seconds(SteadyTime::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

const EngineRequest& RequestOf(const BatchSlice& slice) {
  return *slice.item->owner();
}

}  // namespace

void CountUnwanted(const absl::Status& status, Metrics& metrics) {
  metrics.Rejected(absl::IsCancelled(status) ? Rejection::kCancelled
                                             : Rejection::kExpired);
}

BatchRunner::BatchRunner(Executor* executor, const Kernels& kernels,
                         ComputeTurn* turn, const SteadyClock* clock,
                         Metrics* metrics)
    : clock_(*clock),
      metrics_(*metrics),
      experts_(executor, kernels, turn),
      workspace_(&experts_) {}

void BatchRunner::Compute(const Batch& batch) {
  start_ = clock_.Now();
  for (const BatchSlice& slice : batch.slices) {
    if (slice.first == 0) {
      metrics_.QueueWait(Seconds(start_ - slice.item->arrival()));
    }
    BeginPart(*slice.item->owner());
  }
  stats_ = ForwardStats();
  result_ = EngineResult();
  computed_ = RunLayer(batch);
}

void BatchRunner::BeginPart(EngineRequest& request) const {
  absl::MutexLock lock(&request.mutex_);
  if (request.parts_in_flight_++ > 0) return;
  const bool first = request.waiting_since_ == SteadyTime();
  request.timing_.queued +=
      start_ - (first ? request.item_.arrival() : request.waiting_since_);
}

void BatchRunner::DecodeBatch(const Batch& batch, Matrix input,
                              MatrixView<int32_t> ids, Matrix weights) {
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
  decoded_ = clock_.Now();
}

absl::Status BatchRunner::RunLayer(const Batch& batch) {
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
    ffn.Route(input, workspace_, stats_);
    result_.router_logits = workspace_.router_logits();
  } else {
    const Routing given{.ids = ids, .weights = weights};
    const Matrix output(output_.Grow(tokens * d_model), tokens, d_model);
    MOE_RETURN_IF_ERROR(ffn.Forward(input, given_k > 0 ? &given : nullptr,
                                    workspace_, output, stats_));
    result_.output = output;
  }
  result_.routing = workspace_.routing();
  return absl::OkStatus();
}

void BatchRunner::Encode(const Batch& batch) {
  encode_start_ = clock_.Now();
  int64_t row = 0;
  for (const BatchSlice& slice : batch.slices) {
    EndPart(slice, row);
    row += slice.count;
  }
  Count(batch, clock_.Now());
}

void BatchRunner::EndPart(const BatchSlice& slice, int64_t row) {
  EngineRequest& request = *slice.item->owner();
  absl::MutexLock lock(&request.mutex_);
  --request.parts_in_flight_;
  request.waiting_since_ = encode_start_;
  request.timing_.computed += encode_start_ - decoded_;
  if (!computed_.ok()) {
    request.Fail(computed_);
    return;
  }
  if (const absl::Status wanted = request.CheckWanted(encode_start_);
      !wanted.ok()) {
    if (request.Fail(wanted)) CountUnwanted(wanted, metrics_);
    return;
  }
  request.Fail(CheckExperts(row, slice.count));
  if (!request.status_.ok()) return;
  if (!request.laid_out_) request.codec_.LayOut();
  request.laid_out_ = true;
  EngineResult rows = ResultOf(row, slice.count);
  rows.timing = request.timing_;
  request.codec_.Encode(slice.first, rows);
}

EngineResult BatchRunner::ResultOf(int64_t first, int64_t count) const {
  // What was not computed, as the routing of a dense layer, has no rows.
  const auto rows_of = [&](auto matrix) {
    return matrix.rows() > 0 ? matrix.Rows(first, count) : matrix;
  };
  return {.output = rows_of(result_.output),
          .routing = {.ids = rows_of(result_.routing.ids),
                      .weights = rows_of(result_.routing.weights)},
          .router_logits = rows_of(result_.router_logits),
          .left_out = LeftOut(first, count)};
}

absl::Status BatchRunner::CheckExperts(int64_t first, int64_t count) const {
  const absl::Span<const int32_t> failed = workspace_.failed_experts();
  if (failed.empty()) return absl::OkStatus();
  for (const int32_t expert :
       failed.subspan(static_cast<size_t>(first), static_cast<size_t>(count))) {
    if (expert >= 0) return workspace_.failures().StatusOf(expert);
  }
  return absl::OkStatus();
}

int64_t BatchRunner::LeftOut(int64_t first, int64_t count) const {
  const absl::Span<const int32_t> left_out = workspace_.left_out();
  if (left_out.empty()) return 0;
  const auto begin = left_out.begin() + first;
  const auto sum = std::accumulate(begin, begin + count, int64_t{0});
  if (sum > 0) metrics_.LeftOut(sum);
  return sum;
}

void BatchRunner::Count(const Batch& batch, SteadyTime end) const {
  const LayerCall& call = RequestOf(batch.slices.front()).call();
  if (computed_.ok() && call.layer.metrics != nullptr) {
    metrics_.BatchDone(stats_, Seconds(decoded_ - start_),
                       Seconds(end - encode_start_), batch.tokens,
                       static_cast<int64_t>(batch.slices.size()));
    if (!call.route_only()) {
      call.layer.metrics->BatchDone(stats_, batch.tokens,
                                    workspace_.expert_offsets());
    }
  }
  if (call.layer.statistics == nullptr) return;
  LayerStatistics& statistics = *call.layer.statistics;
  statistics.decoded.Add(1, decoded_ - start_);
  statistics.computed.Add(1, encode_start_ - decoded_);
  statistics.encoded.Add(1, end - encode_start_);
  statistics.tokens.fetch_add(static_cast<uint64_t>(batch.tokens),
                              std::memory_order_relaxed);
  statistics.last_milliseconds.store(absl::ToUnixMillis(absl::Now()),
                                     std::memory_order_relaxed);
  for (const BatchSlice& slice : batch.slices) {
    if (slice.first == 0) {
      statistics.queued.Add(1, start_ - slice.item->arrival());
    }
  }
}

}  // namespace moe
