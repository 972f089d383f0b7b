// What a layer has done since its model was loaded, as the statistics of the
// Open Inference Protocol's clients want it. (Metrics are for Prometheus.)

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace moe {

// A number of events and the time that they took together. Thread-safe.
class EventTimes {
 public:
  using Duration = std::chrono::steady_clock::duration;

  void Add(uint64_t count, Duration total) {
    count_.fetch_add(count, std::memory_order_relaxed);
    nanoseconds_.fetch_add(
        static_cast<uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(total)
                .count()),
        std::memory_order_relaxed);
  }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  uint64_t nanoseconds() const {
    return nanoseconds_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t> count_ = 0;
  std::atomic<uint64_t> nanoseconds_ = 0;
};

// Thread-safe.
struct LayerStatistics {
  // Requests, from admission to the end.
  EventTimes succeeded;
  EventTimes failed;
  // Requests, until their first row is in a batch.
  EventTimes queued;
  // Batches: reading the rows, the layer, writing the rows.
  EventTimes decoded;
  EventTimes computed;
  EventTimes encoded;
  std::atomic<uint64_t> tokens = 0;
  // The time of the last batch, since 1970.
  std::atomic<int64_t> last_milliseconds = 0;
};

}  // namespace moe
