// What a stream of requests and responses may do next.
//
// Pure logic: no clock, no lock, no thread, and no knowledge of networks.
// Responses are written in the order of their requests, one at a time; one
// message is read at a time, and none while too much waits.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"

namespace moe {

// A stream reads no further while that many of its requests, or as many tokens
// or bytes of them, have not been answered and sent.
struct StreamLimits {
  size_t max_requests = 0;
  int64_t max_tokens = 0;
  int64_t max_bytes = 0;
};

// Thread-compatible.
class StreamState {
 public:
  // A request, by its place in the stream: 0, 1, ...
  using Number = uint64_t;

  explicit StreamState(const StreamLimits& limits) : limits_(limits) {}

  // What is to be started now.
  struct Steps {
    bool read = false;
    // The response of the oldest request.
    bool write = false;
    // The end of the stream, with this status; nothing else then.
    std::optional<absl::Status> finish = std::nullopt;

    bool none() const { return !read && !write && !finish.has_value(); }
  };
  // What is started by the caller now: it is not given again until ReadDone or
  // WriteDone, and nothing is once the stream has ended.
  Steps TakeSteps();

  // The read has brought a message. Returns the request that it is; none if the
  // stream has ended meanwhile. Before ReadDone.
  std::optional<Number> Received();
  // The read has ended, and with it the caller's side if there was no message.
  void ReadDone(bool message);

  // A request goes to the engine: it counts until its response has been sent.
  void Admit(Number number, int64_t tokens, int64_t bytes);
  // The engine did not take it.
  void Withdraw(Number number) { Admit(number, 0, 0); }
  // The response of a request is there.
  void Responded(Number number);

  // The write has ended, and the oldest request with it. Returns its bytes.
  // ok: false if the caller is gone: nothing more will be read.
  int64_t WriteDone(bool ok);

  // No further reads: the stream ends once what came is answered and sent.
  void Drain() { draining_ = true; }
  // The caller ends the stream: no further steps.
  void End() { ended_ = true; }

 private:
  struct Request {
    int64_t tokens = 0;
    int64_t bytes = 0;
    bool responded = false;
  };

  Request& Find(Number number);
  bool MayRead() const;
  bool MayWrite() const;
  bool MayFinish() const;

  StreamLimits limits_;
  // In their order; the front is the next to be written.
  std::deque<Request> requests_;
  Number first_ = 0;    // the number of the front
  int64_t tokens_ = 0;  // of all requests
  int64_t bytes_ = 0;   // likewise
  bool reading_ = false;
  bool reads_done_ = false;
  bool writing_ = false;
  bool draining_ = false;
  bool ended_ = false;
};

}  // namespace moe
