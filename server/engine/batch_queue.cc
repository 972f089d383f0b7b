#include "server/engine/batch_queue.h"

#include <algorithm>
#include <utility>

#include "experts/base/check.h"

namespace moe {

BatchQueue::BatchQueue(const BatchLimits& limits)
    : limits_(limits),
      quantum_(std::max<int64_t>(1, limits.max_batch_tokens / 4)) {
  MOE_CHECK(limits.max_batch_tokens >= 1);
}

bool BatchQueue::LessUrgent(const BatchItem* a, const BatchItem* b) {
  return std::pair(a->urgency_, a->sequence_) >
         std::pair(b->urgency_, b->sequence_);
}

BatchQueue::Queue& BatchQueue::FindOrAdd(const BatchKey& key,
                                         SteadyTime start_by) {
  for (size_t i = 0; i < num_queues_; ++i) {
    if (queues_[i].key == key) return queues_[i];
  }
  if (num_queues_ == queues_.size()) queues_.emplace_back();
  Queue& queue = queues_[num_queues_++];
  queue.key = key;
  queue.start_by = start_by;
  return queue;
}

std::chrono::nanoseconds BatchQueue::Courtesy(int64_t tokens) const {
  const double turns = static_cast<double>(std::min(tokens, quantum_)) /
                       static_cast<double>(quantum_);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(turns *
                                                              kPatience);
}

void BatchQueue::Put(Queue& queue, BatchItem* item, SteadyTime urgency) {
  item->urgency_ = std::min(item->deadline_, urgency);
  item->sequence_ = next_sequence_++;
  queue.heap.push_back(item);
  std::push_heap(queue.heap.begin(), queue.heap.end(), LessUrgent);
}

bool BatchQueue::Push(BatchItem* item, SteadyTime now) {
  const int64_t cost = Cost(item->tokens_);
  if (!empty() && tokens_ + cost > limits_.max_queue_tokens) return false;
  item->arrival_ = now;
  item->taken_ = 0;
  Queue& queue = FindOrAdd(item->key_, now + limits_.max_queue_delay);
  Put(queue, item, now + kPatience + Courtesy(item->tokens_));
  queue.tokens += cost;
  tokens_ += cost;
  return true;
}

std::optional<SteadyTime> BatchQueue::StartTime(bool engine_idle) const {
  if (empty()) return std::nullopt;
  SteadyTime start = SteadyTime::max();
  for (size_t i = 0; i < num_queues_; ++i) {
    const Queue& queue = queues_[i];
    const bool full = queue.tokens >= limits_.max_batch_tokens;
    if (engine_idle || full) return SteadyTime::min();
    start = std::min(start, queue.start_by);
  }
  return start;
}

void BatchQueue::Pop(SteadyTime now,
                     absl::FunctionRef<bool(const BatchItem&)> wanted,
                     Batch* batch) {
  batch->slices.clear();
  batch->dropped.clear();
  batch->tokens = 0;
  // A queue may turn out to hold nothing that is still wanted.
  while (!empty() && batch->slices.empty()) {
    const auto begin = queues_.begin();
    const auto most_urgent =
        std::max_element(begin, begin + static_cast<ptrdiff_t>(num_queues_),
                         [](const Queue& a, const Queue& b) {
                           return LessUrgent(a.heap.front(), b.heap.front());
                         });
    Queue& queue = *most_urgent;
    TakeTurns(queue, wanted, batch);

    for (BatchSlice& slice : batch->slices) {
      BatchItem* item = slice.item;
      item->taken_ += slice.count;
      const int64_t cost = Cost(slice.count);
      queue.tokens -= cost;
      tokens_ -= cost;
      batch->tokens += slice.count;
      slice.last = item->taken_ == item->tokens_;
      if (slice.last) continue;
      // Who had a full turn goes behind those that wait; who was cut short for
      // want of room keeps the place.
      Put(queue, item,
          slice.count >= quantum_ ? now + kPatience : item->urgency_);
    }
    if (queue.heap.empty()) {
      std::swap(queue, queues_[--num_queues_]);
    } else {
      queue.start_by = now;  // has waited long enough
    }
  }
}

void BatchQueue::TakeTurns(Queue& queue,
                           absl::FunctionRef<bool(const BatchItem&)> wanted,
                           Batch* batch) {
  int64_t room = limits_.max_batch_tokens;
  while (room > 0 && !queue.heap.empty()) {
    std::pop_heap(queue.heap.begin(), queue.heap.end(), LessUrgent);
    BatchItem* item = queue.heap.back();
    queue.heap.pop_back();
    const int64_t left = item->tokens_ - item->taken_;
    if (!wanted(*item)) {
      queue.tokens -= Cost(left);
      tokens_ -= Cost(left);
      batch->dropped.push_back(item);
      continue;
    }
    const int64_t count = std::min({left, quantum_, room});
    batch->slices.push_back(
        {.item = item, .first = item->taken_, .count = count});
    room -= Cost(count);
  }
  for (BatchSlice& slice : batch->slices) {
    const int64_t left = slice.item->tokens_ - slice.first - slice.count;
    const int64_t more = std::min(left, room);
    slice.count += more;
    room -= more;
  }
}

}  // namespace moe
