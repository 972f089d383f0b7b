#include "server/rpc/stream_state.h"

#include "experts/base/check.h"

namespace moe {

StreamState::Request& StreamState::Find(Number number) {
  MOE_CHECK(number >= first_ && number - first_ < requests_.size());
  return requests_[static_cast<size_t>(number - first_)];
}

bool StreamState::MayRead() const {
  return !reading_ && !reads_done_ && !draining_ &&
         requests_.size() < limits_.max_requests &&
         tokens_ < limits_.max_tokens && bytes_ < limits_.max_bytes;
}

bool StreamState::MayWrite() const {
  return !writing_ && !requests_.empty() && requests_.front().responded;
}

bool StreamState::MayFinish() const {
  return requests_.empty() && (reads_done_ || draining_);
}

StreamState::Steps StreamState::TakeSteps() {
  Steps steps;
  if (ended_) return steps;
  if (MayFinish()) {
    ended_ = true;
    steps.finish =
        reads_done_
            ? absl::OkStatus()
            : absl::UnavailableError("server is draining; retry elsewhere");
    return steps;
  }
  if (MayRead()) reading_ = steps.read = true;
  if (MayWrite()) writing_ = steps.write = true;
  return steps;
}

std::optional<StreamState::Number> StreamState::Received() {
  if (ended_) return std::nullopt;
  requests_.emplace_back();
  return first_ + requests_.size() - 1;
}

void StreamState::ReadDone(bool message) {
  reading_ = false;
  if (!message) reads_done_ = true;
}

void StreamState::Admit(Number number, int64_t tokens, int64_t bytes) {
  Request& request = Find(number);
  tokens_ += tokens - request.tokens;
  bytes_ += bytes - request.bytes;
  request.tokens = tokens;
  request.bytes = bytes;
}

void StreamState::Responded(Number number) { Find(number).responded = true; }

int64_t StreamState::WriteDone(bool ok) {
  MOE_CHECK(writing_);
  writing_ = false;
  if (!ok) reads_done_ = true;
  const int64_t bytes = requests_.front().bytes;
  Withdraw(first_);
  requests_.pop_front();
  ++first_;
  return bytes;
}

}  // namespace moe
