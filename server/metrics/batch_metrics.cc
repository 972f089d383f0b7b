#include "server/metrics/batch_metrics.h"

namespace moe {
namespace {

constexpr std::array<const char*, kNumStages + 2> kStageNames = {
    "decode", "gate", "top_k", "dispatch", "experts", "combine", "encode"};

}  // namespace

BatchMetrics::BatchMetrics(prometheus::Registry& registry)
    : tokens_per_batch_(MakeHistogram(registry, "moe_batch_tokens",
                                      "Tokens in a batch given to the engine.",
                                      CountBuckets())),
      requests_per_batch_(MakeHistogram(
          registry, "moe_batch_requests",
          "Requests in a batch given to the engine.", CountBuckets())),
      tokens_(MakeCounter(registry, "moe_tokens_total", "Tokens computed.")),
      nonfinite_rows_(
          MakeCounter(registry, "moe_nonfinite_rows_total",
                      "Input rows with NaN or Inf, answered with NaN.")),
      left_out_experts_(MakeCounter(
          registry, "moe_left_out_experts_total",
          "Experts that tokens had chosen and that were left out, since no "
          "replica of their shard answered.")),
      queue_tokens_(MakeGauge(registry, "moe_queue_tokens",
                              "Tokens admitted and waiting for the engine.")),
      queue_bytes_(MakeGauge(
          registry, "moe_queue_bytes",
          "Bytes of requests and answers, from admission until sent.")),
      max_queue_tokens_(MakeGauge(registry, "moe_max_queue_tokens",
                                  "The flag --max_queue_tokens.")),
      max_queue_bytes_(MakeGauge(registry, "moe_max_queue_bytes",
                                 "The flag --max_queue_bytes.")),
      queue_wait_(MakeHistogram(registry, "moe_queue_wait_seconds",
                                "Time a request waited for the engine.",
                                SecondsBuckets())) {
  HistogramFamily* const stages =
      MakeHistograms(registry, "moe_stage_duration_seconds",
                     "Time of one batch in one stage.");
  for (size_t s = 0; s < stage_duration_.size(); ++s) {
    stage_duration_[s] =
        &stages->Add({{"stage", kStageNames[s]}}, SecondsBuckets());
  }
}

void BatchMetrics::SetQueueLimits(int64_t tokens, int64_t bytes) {
  max_queue_tokens_->Set(static_cast<double>(tokens));
  max_queue_bytes_->Set(static_cast<double>(bytes));
}

void BatchMetrics::Done(const ForwardStats& stats, double decode_seconds,
                        double encode_seconds, int64_t tokens,
                        int64_t requests) {
  stage_duration_.front()->Observe(decode_seconds);
  for (size_t s = 0; s < kNumStages; ++s) {
    stage_duration_[s + 1]->Observe(stats.stage_seconds[s]);
  }
  stage_duration_.back()->Observe(encode_seconds);
  tokens_per_batch_->Observe(static_cast<double>(tokens));
  requests_per_batch_->Observe(static_cast<double>(requests));
  tokens_->Increment(static_cast<double>(tokens));
  if (stats.nonfinite_rows > 0) {
    nonfinite_rows_->Increment(static_cast<double>(stats.nonfinite_rows));
  }
}

}  // namespace moe
