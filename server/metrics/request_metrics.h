// What is counted about requests.

#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "server/metrics/metric_families.h"

namespace moe {

// The RPCs that are counted; of a stream, each of its messages.
enum class Method : uint8_t {
  kForward,
  kForwardStream,
  kRoute,
  kListModels,
  kGetModel,
  kModelInfer,
  kModelStreamInfer,
  kModelMetadata,
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
  kDescribeShard,
  kForwardExperts
};
inline constexpr int kNumMethods = 15;

// Why a request was turned away before compute.
enum class Rejection : uint8_t { kQueueFull, kDraining, kExpired, kCancelled };
inline constexpr int kNumRejections = 4;

// Thread-safe.
class RequestMetrics {
 public:
  explicit RequestMetrics(prometheus::Registry& registry);

  void Started() { in_flight_->Increment(); }
  void Received(Method method, int64_t bytes) {
    series_[static_cast<size_t>(method)].received_bytes->Increment(
        static_cast<double>(bytes));
  }
  void Done(Method method, absl::StatusCode code, double seconds,
            int64_t sent_bytes);
  void Rejected(Rejection reason) {
    rejected_[static_cast<size_t>(reason)]->Increment();
  }

 private:
  // The series of one method.
  struct MethodSeries {
    std::array<prometheus::Counter*, kNumCodes> requests{};  // by CodeIndex
    prometheus::Histogram* duration = nullptr;
    prometheus::Counter* received_bytes = nullptr;
    prometheus::Counter* sent_bytes = nullptr;
  };

  std::array<MethodSeries, kNumMethods> series_;
  std::array<prometheus::Counter*, kNumRejections> rejected_;
  prometheus::Gauge* in_flight_;
};

}  // namespace moe
