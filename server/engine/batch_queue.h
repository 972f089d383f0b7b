// Decides which waiting requests run together, and when.
//
// Pure logic: no clock (time comes in as an argument), no lock, no thread, and
// no knowledge of tensors or networks.
//
//   * Requests with equal keys share a batch of at most max_batch_tokens.
//   * The most urgent queue goes first, and within it the most urgent request.
//     A request is as urgent as its deadline, but at least as if it had to be
//     answered kPatience after its arrival: deadlines first, then age, and
//     nobody waits forever. Until its first turn a request also lets pass those
//     that are smaller and came up to kPatience later, in proportion to its
//     size: who asks for little does not wait for a crowd of large ones.
//   * A large request takes turns of a quarter of a batch, and what nobody else
//     wants: it neither starves small ones nor is starved by them.
//   * A batch that is not full may wait for company until its oldest request
//     has waited max_queue_delay, but only if the engine has just finished a
//     batch; an idle engine starts at once.
//
// Thread-safety: thread-compatible. Allocates nothing once its vectors have
// grown to the load.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/common/steady_time.h"

namespace moe {

class EngineRequest;

// Requests with equal keys can share a batch.
struct BatchKey {
  const void* layer = nullptr;  // identity only
  // Columns of the routing that the caller gave; 0 = the router chooses.
  int64_t given_k = 0;
  bool route_only = false;

  friend bool operator==(const BatchKey& a, const BatchKey& b) {
    return a.layer == b.layer && a.given_k == b.given_k &&
           a.route_only == b.route_only;
  }
};

// The place of a request in the queue. Stays at its address from Push until the
// last of it is in a batch, or it is dropped.
class BatchItem {
 public:
  // owner: the request, which the queue hands back and does not look at
  BatchItem(const BatchKey& key, int64_t tokens, SteadyTime deadline,
            EngineRequest* owner)
      : key_(key), tokens_(tokens), deadline_(deadline), owner_(owner) {}

  const BatchKey& key() const { return key_; }
  int64_t tokens() const { return tokens_; }
  SteadyTime deadline() const { return deadline_; }
  EngineRequest* owner() const { return owner_; }
  // When Push admitted it.
  SteadyTime arrival() const { return arrival_; }

 private:
  friend class BatchQueue;
  BatchKey key_;
  int64_t tokens_;
  SteadyTime deadline_;
  EngineRequest* owner_;
  SteadyTime arrival_;
  SteadyTime urgency_;
  uint64_t sequence_ = 0;  // breaks ties of urgency
  int64_t taken_ = 0;      // tokens that went into batches
};

// Rows [first, first + count) of a request in a batch.
struct BatchSlice {
  BatchItem* item = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  bool last = false;  // nothing of the request is left
};

struct Batch {
  std::vector<BatchSlice> slices;   // of one key
  std::vector<BatchItem*> dropped;  // no longer wanted; may be of other keys
  int64_t tokens = 0;               // in all slices
};

struct BatchLimits {
  int64_t max_batch_tokens = 1024;
  std::chrono::nanoseconds max_queue_delay{0};
  // Requests beyond it are refused; a request that finds the queue empty is
  // always admitted.
  int64_t max_queue_tokens = 65536;
};

class BatchQueue {
 public:
  static constexpr std::chrono::seconds kPatience{1};

  // Requires: max_batch_tokens >= 1.
  explicit BatchQueue(const BatchLimits& limits);

  // Adds a request, or returns false because the queue is full. A request
  // without tokens counts as one.
  bool Push(BatchItem* item, SteadyTime now);

  // When the next batch should start; a time that has passed means at once,
  // none that nothing waits.
  // engine_idle: no batch has run since something was waiting.
  std::optional<SteadyTime> StartTime(bool engine_idle) const;

  // Fills `batch` with the next one; empty if nothing waits.
  // wanted: whether anyone still waits for the response; asked before each
  // turn.
  void Pop(SteadyTime now, absl::FunctionRef<bool(const BatchItem&)> wanted,
           Batch* batch);

  bool empty() const { return num_queues_ == 0; }
  // Tokens waiting.
  int64_t tokens() const { return tokens_; }

 private:
  // The requests of one key, as a heap by urgency.
  struct Queue {
    BatchKey key;
    std::vector<BatchItem*> heap;
    int64_t tokens = 0;
    SteadyTime start_by;
  };

  static bool LessUrgent(const BatchItem* a, const BatchItem* b);
  static int64_t Cost(int64_t tokens) { return tokens > 0 ? tokens : 1; }
  // By how much a request of that many tokens comes after one of none.
  std::chrono::nanoseconds Courtesy(int64_t tokens) const;
  Queue& FindOrAdd(const BatchKey& key, SteadyTime start_by);
  void Put(Queue& queue, BatchItem* item, SteadyTime urgency);
  void TakeTurns(Queue& queue, absl::FunctionRef<bool(const BatchItem&)> wanted,
                 Batch* batch);

  const BatchLimits limits_;
  const int64_t quantum_;
  // The first num_queues_ have requests; the rest keep their memory.
  std::vector<Queue> queues_;
  size_t num_queues_ = 0;
  int64_t tokens_ = 0;
  uint64_t next_sequence_ = 0;
};

}  // namespace moe
