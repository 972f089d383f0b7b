// What is counted about the queue and the batches that leave it.

#pragma once

#include <array>
#include <cstdint>

#include "router/ffn_layer.h"
#include "server/metrics/metric_families.h"

namespace moe {

// Thread-safe.
class BatchMetrics {
 public:
  explicit BatchMetrics(prometheus::Registry& registry);

  void SetQueueLimits(int64_t tokens, int64_t bytes);
  void SetQueueTokens(int64_t tokens) {
    queue_tokens_->Set(static_cast<double>(tokens));
  }
  void AddQueueBytes(int64_t bytes) {
    queue_bytes_->Increment(static_cast<double>(bytes));
  }
  void QueueWait(double seconds) { queue_wait_->Observe(seconds); }

  // One batch through one layer, whatever was asked of it.
  void Done(const ForwardStats& stats, double decode_seconds,
            double encode_seconds, int64_t tokens, int64_t requests);
  void LeftOut(int64_t experts) {
    left_out_experts_->Increment(static_cast<double>(experts));
  }

 private:
  // Stages of the router, with decode before and encode after them.
  static constexpr size_t kNumTimedStages = kNumStages + 2;

  std::array<prometheus::Histogram*, kNumTimedStages> stage_duration_;
  prometheus::Histogram* const tokens_per_batch_;
  prometheus::Histogram* const requests_per_batch_;
  prometheus::Counter* const tokens_;
  prometheus::Counter* const nonfinite_rows_;
  prometheus::Counter* const left_out_experts_;
  prometheus::Gauge* const queue_tokens_;
  prometheus::Gauge* const queue_bytes_;
  prometheus::Gauge* const max_queue_tokens_;
  prometheus::Gauge* const max_queue_bytes_;
  prometheus::Histogram* const queue_wait_;
};

}  // namespace moe
