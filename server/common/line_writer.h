// Text for a descriptor whose reader may be slow, or gone for good: a bounded
// queue, and one thread that writes.
//
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace moe {

struct LineWriterOptions {
  int fd = -1;  // not owned
  // What may wait; as much again may be on its way.
  size_t max_bytes = size_t{1} << 20;
  // The line that stands where others were lost, of how many there were.
  std::string (*lost)(int64_t lines) = nullptr;
};

class LineWriter {
 public:
  explicit LineWriter(const LineWriterOptions& options);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  // Waits for nothing: what is still queued is written as long as the process
  // lives.
  ~LineWriter();

  // Queues a line, its end included. Never waits for the descriptor. Lines are
  // lost while the queue is full, and where the descriptor takes no more (a
  // closed pipe, a full disk); then a line of `lost` stands in their place, as
  // soon as the descriptor takes one.
  // A process that may have no more threads writes here and now.
  void Write(std::string line) const;

  // Waits until all lines of earlier Writes are written or lost, at most
  // `timeout`. Returns whether they are.
  bool Flush(absl::Duration timeout) const;

 private:
  class Queue;

  // Shared with the thread, which may be in a write that never returns.
  const std::shared_ptr<Queue> queue_;
};

}  // namespace moe
