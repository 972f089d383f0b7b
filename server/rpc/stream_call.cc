#include "server/rpc/stream_call.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "experts/base/status_macros.h"
#include "server/common/steady_time.h"
#include "server/rpc/open_calls.h"
#include "server/rpc/request_timer.h"
#include "server/rpc/stream_state.h"
#include "server/wire/grpc_status.h"

namespace moe {
namespace {

using StreamReactor =
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Enough for one batch to run, one to wait, and one to be on its way.
constexpr size_t kMaxStreamRequests = 32;
constexpr int64_t kMaxStreamBatches = 3;

StreamLimits LimitsOf(const ServiceContext& services) {
  return {.max_requests = kMaxStreamRequests,
          .max_tokens = kMaxStreamBatches *
                        services.engine().options().batching.max_batch_tokens,
          .max_bytes = services.limits().max_message_bytes};
}

// The open calls own it until OnDone.
//
// Reads, engine and writes run on different threads. Each of them notes what
// happened under the lock and then calls Act, which starts what can be started:
// at most one read, one write, and in the end Finish.
class StreamCall final : public StreamReactor,
                         public OpenStream,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  StreamCall(ServiceContext* services, const StreamMethod& method,
             grpc::CallbackServerContext& context)
      : count_(&services->open_calls()),
        services_(*services),
        method_(method),
        call_(context.c_call()),
        deadline_(ServiceContext::DeadlineOf(context)),
        state_(LimitsOf(*services)) {}

  // Starts what can be started.
  void Act();
  // Ends the stream before it has begun.
  void Refuse(const absl::Status& status);
  void Drain() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
  }
  void OnDone() override { services_.open_calls().RemoveStream(this); }

 private:
  // One request of the stream and its response.
  class Entry final : public RequestObserver {
   public:
    Entry(StreamCall* stream, StreamState::Number number)
        : stream_(*stream),
          number_(number),
          timer_(stream->method_.method, stream->services_.metrics()) {}

    // Gives the message to the engine, or responds to it. The entry may be gone
    // afterwards.
    void Start(const grpc::ByteBuffer& message);
    const grpc::ByteBuffer& response() const { return response_; }

    bool Cancelled() const override {
      return stream_.cancelled_.load(std::memory_order_relaxed);
    }
    void OnFinished(const absl::Status& status) override;

   private:
    // If OK, the entry may be gone afterwards.
    absl::Status Submit(const grpc::ByteBuffer& message);

    StreamCall& stream_;
    const StreamState::Number number_;
    RequestTimer timer_;
    RequestLabel label_;
    std::optional<CallRequest> request_;
    grpc::ByteBuffer response_;
  };

  absl::Status Submit(StreamState::Number number, EngineRequest* request);
  void Responded(StreamState::Number number);

  const OpenCalls::Count count_;
  ServiceContext& services_;
  const StreamMethod method_;
  grpc_call* const call_;
  const SteadyTime deadline_;
  std::atomic<bool> cancelled_ = false;
  grpc::ByteBuffer incoming_;  // of the read that runs
  SendWatch::Send send_;       // of the write that runs

  absl::Mutex mutex_;
  StreamState state_ ABSL_GUARDED_BY(mutex_);
  // The requests of state_, in their order.
  std::deque<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  bool acting_ ABSL_GUARDED_BY(mutex_) = false;
};

void StreamCall::Entry::Start(const grpc::ByteBuffer& message) {
  timer_.Received(message);
  const absl::Status status = Submit(message);
  if (!status.ok()) OnFinished(status);
}

absl::Status StreamCall::Entry::Submit(const grpc::ByteBuffer& message) {
  MOE_ASSIGN_OR_RETURN(
      ParsedRequest parsed,
      stream_.method_.parse(message,
                            {.registry = stream_.services_.registry(),
                             .limits = stream_.services_.limits(),
                             .now = SteadyClock::Real().Now()},
                            &label_));
  request_.emplace(std::move(parsed), stream_.deadline_, this);
  return stream_.Submit(number_, &request_->engine_request());
}

void StreamCall::Entry::OnFinished(const absl::Status& status) {
  if (status.ok()) {
    response_ = request_->TakeResponse();
  } else {
    const int64_t retry_after_ms =
        absl::IsResourceExhausted(status)
            ? stream_.services_.engine().RetryAfter().count()
            : 0;
    response_ = stream_.method_.error(label_, status, retry_after_ms);
  }
  timer_.Done(status.code(), &response_);
  stream_.Responded(number_);
}

void StreamCall::Refuse(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    state_.End();
  }
  Finish(ToGrpcStatus(status));
}

void StreamCall::Drain() {
  {
    absl::MutexLock lock(&mutex_);
    state_.Drain();
  }
  Act();
}

void StreamCall::Act() {
  // gRPC may call back from within Start..., and after Finish the object may be
  // gone at any time: no call with the lock held, one thread at a time here,
  // and Finish is the last thing to be done.
  while (true) {
    StreamState::Steps steps;
    const grpc::ByteBuffer* write = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (acting_) return;  // who acts will look again
      steps = state_.TakeSteps();
      if (steps.none()) return;
      if (steps.write) write = &entries_.front()->response();
      acting_ = true;
    }
    if (steps.finish.has_value()) return Finish(ToGrpcStatus(*steps.finish));
    if (steps.read) StartRead(&incoming_);
    if (write != nullptr) {
      send_ = services_.BeginSend(call_);
      StartWrite(write);
    }
    absl::MutexLock lock(&mutex_);
    acting_ = false;
  }
}

void StreamCall::OnReadDone(bool ok) {
  if (ok) {
    Entry* entry = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      // Read too late: the stream has been drained, or its caller is gone. No
      // entry then, for it counts as a request until it has its response.
      const std::optional<StreamState::Number> number = state_.Received();
      if (!number.has_value()) return;
      entries_.push_back(std::make_unique<Entry>(this, *number));
      entry = entries_.back().get();
    }
    entry->Start(incoming_);
    incoming_.Clear();
  }
  {
    absl::MutexLock lock(&mutex_);
    state_.ReadDone(/*message=*/ok);
  }
  Act();
}

void StreamCall::OnWriteDone(bool ok) {
  services_.EndSend(send_);
  {
    std::unique_ptr<Entry> sent;  // is destroyed without the lock
    absl::MutexLock lock(&mutex_);
    sent = std::move(entries_.front());
    entries_.pop_front();
    services_.engine().Release(state_.WriteDone(ok));
    // The caller is gone. What has its response goes at once, the rest follows
    // as the engine drops it.
    if (!ok) cancelled_.store(true, std::memory_order_relaxed);
  }
  Act();
}

absl::Status StreamCall::Submit(StreamState::Number number,
                                EngineRequest* request) {
  {
    absl::MutexLock lock(&mutex_);
    state_.Admit(number, request->tokens(), request->bytes());
  }
  absl::Status status = services_.engine().Submit(request);
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    state_.Withdraw(number);  // nothing to release
  }
  return status;
}

void StreamCall::Responded(StreamState::Number number) {
  // Once the response is there, another thread may send it, and with it the
  // last of the stream, before this one goes on.
  const std::shared_ptr<StreamCall> alive = shared_from_this();
  {
    absl::MutexLock lock(&mutex_);
    state_.Responded(number);
  }
  Act();
}

}  // namespace

StreamReactor* RunStream(ServiceContext* services, const StreamMethod& method,
                         grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<StreamCall>(services, method, *context);
  StreamCall* const call = stream.get();
  const bool draining = services->open_calls().AddStream(std::move(stream));
  const absl::Status status = services->access().Authorize(*context);
  if (!status.ok()) {
    call->Refuse(status);
  } else if (draining) {
    call->Drain();
  } else {
    call->Act();
  }
  return call;
}

}  // namespace moe
