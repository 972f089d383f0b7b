#include "server/rpc/rpc_calls.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "server/wire/grpc_status.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

// Trailing metadata of RESOURCE_EXHAUSTED: retry policies of gRPC clients obey
// it, others may read it.
constexpr char kRetryPushback[] = "grpc-retry-pushback-ms";

// A stream reads no further while that many of its requests, or as many tokens
// as fit into that many batches, or bytes as fit into one message, have not
// been answered and sent: one batch runs, one waits, one is on its way.
constexpr size_t kMaxStreamRequests = 32;
constexpr int64_t kMaxStreamBatches = 3;

// An answer may take that long to be sent once half of the memory for requests
// and answers is taken.
constexpr absl::Duration kSendTimeoutUnderPressure = absl::Seconds(10);

bool ShowsToken(const grpc::CallbackServerContext& context,
                const TokenFile& tokens) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  return found != metadata.end() &&
         tokens.AcceptsHeader(
             absl::string_view(found->second.data(), found->second.size()));
}

}  // namespace

SteadyTime ToSteady(std::chrono::system_clock::time_point deadline) {
  // Compared in seconds: "never" would overflow.
  const std::chrono::duration<double> left =
      std::chrono::duration<double>(deadline.time_since_epoch()) -
      std::chrono::duration<double>(
          std::chrono::system_clock::now().time_since_epoch());
  constexpr double kForever = 1e9;  // seconds
  if (left.count() > kForever) return SteadyTime::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
}

void AddRetryPushback(const Engine& engine,
                      grpc::CallbackServerContext& context) {
  context.AddTrailingMetadata(kRetryPushback,
                              absl::StrCat(engine.RetryAfter().count()));
}

void UnaryCall::Answer(const absl::Status& status,
                       const grpc::ByteBuffer* answer) {
  timer_.Done(status.code(), answer);
  grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
}

RpcHost::RpcHost(const ServiceLimits& limits, const ModelRegistry* registry,
                 Engine* engine, Metrics* metrics)
    : limits_(limits),
      registry_(*registry),
      engine_(*engine),
      metrics_(*metrics),
      send_watch_({.timeout = limits.send_timeout,
                   .timeout_under_pressure = kSendTimeoutUnderPressure,
                   .under_pressure =
                       [engine] {
                         return engine->bytes() >
                                engine->options().max_queue_bytes / 2;
                       },
                   .on_stalled = [metrics] { metrics->CallStalled(); }}) {}

absl::Status RpcHost::Authorize(
    const grpc::CallbackServerContext& context) const {
  if (tokens_ == nullptr || ShowsToken(context, *tokens_)) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      "authorization: want \"Bearer TOKEN\" with a token of this server");
}

absl::Status RpcHost::AuthorizeControl(
    const grpc::CallbackServerContext& context) const {
  if (!model_control_) {
    return absl::PermissionDeniedError(
        "models can't be loaded or unloaded here: want --model_control or "
        "--admin_token_file");
  }
  if (admin_tokens_ == nullptr) return Authorize(context);
  if (ShowsToken(context, *admin_tokens_)) return absl::OkStatus();
  // A caller that is known already need not say again who it is: it may not.
  const bool known = tokens_ != nullptr && ShowsToken(context, *tokens_);
  return absl::Status(
      known ? absl::StatusCode::kPermissionDenied
            : absl::StatusCode::kUnauthenticated,
      "authorization: want \"Bearer TOKEN\" with an admin token of this "
      "server");
}

grpc::ServerUnaryReactor* RpcHost::AnswerNow(
    Method method, grpc::CallbackServerContext* context,
    absl::FunctionRef<absl::Status()> fill) {
  auto* call = std::make_unique<UnaryCall>(method, metrics_)
                   .release();  // owns itself until OnDone
  absl::Status status = Authorize(*context);
  if (status.ok()) status = fill();
  call->Answer(status);
  return call;
}

void RpcHost::Begin(std::shared_ptr<StreamCall> stream,
                    const grpc::CallbackServerContext& context) {
  StreamCall* call = stream.get();
  bool draining = false;
  {
    absl::MutexLock lock(&mutex_);
    draining = draining_;
    streams_.emplace(call, std::move(stream));
  }
  const absl::Status status = Authorize(context);
  if (!status.ok()) {
    call->Refuse(status);
  } else if (draining) {
    call->Drain();
  } else {
    call->Act();
  }
}

void RpcHost::StreamDone(StreamCall* stream) {
  std::shared_ptr<StreamCall> last;  // is destroyed without the lock
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  last = std::move(found->second);
  streams_.erase(found);
}

void RpcHost::BeginDrain() {
  std::vector<std::shared_ptr<StreamCall>> streams;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [stream, owned] : streams_) streams.push_back(owned);
  }
  for (const auto& stream : streams) stream->Drain();
}

bool RpcHost::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_calls_ == 0;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

void StreamCall::Refuse(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    finished_ = true;
  }
  Finish(ToGrpcStatus(status));
}

void StreamCall::Drain() {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
  }
  Act();
}

bool StreamCall::MayRead() const {
  return !reading_ && !reads_done_ && !draining_ &&
         entries_.size() < kMaxStreamRequests &&
         tokens_ < kMaxStreamBatches *
                       host_.engine().options().batching.max_batch_tokens &&
         bytes_ < host_.limits().max_message_bytes;
}

absl::Status StreamCall::FinalStatus() const {
  if (reads_done_) return absl::OkStatus();
  return absl::UnavailableError("server is draining; retry elsewhere");
}

void StreamCall::Act() {
  // gRPC may call back from within Start..., and after Finish the object may be
  // gone at any time: no call with the lock held, one thread at a time here,
  // and Finish is the last thing to be done.
  while (true) {
    bool read = false;
    const grpc::ByteBuffer* write = nullptr;
    bool finish = false;
    absl::Status final_status;
    {
      absl::MutexLock lock(&mutex_);
      if (acting_ || finished_) return;  // who acts will look again
      if (MayFinish()) {
        finished_ = finish = true;
        final_status = FinalStatus();
      } else {
        if (MayRead()) reading_ = read = true;
        if (MayWrite()) {
          writing_ = true;
          write = &entries_.front()->answer_bytes_;
        }
        if (!read && write == nullptr) return;
        acting_ = true;
      }
    }
    if (finish) return Finish(ToGrpcStatus(final_status));
    if (read) StartRead(&incoming_);
    if (write != nullptr) {
      send_ = host_.send_watch().Begin(call_);
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
      // entry then, for it counts as a request until it is answered.
      if (finished_) return;
      entries_.push_back(NewEntry());
      entry = entries_.back().get();
    }
    entry->Start(incoming_);
    incoming_.Clear();
  }
  {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    if (!ok) reads_done_ = true;
  }
  Act();
}

void StreamCall::OnWriteDone(bool ok) {
  host_.send_watch().End(send_);
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    PopEntry();
    if (!ok) {
      // The caller is gone. What is answered goes at once, the rest follows as
      // the engine drops it.
      cancelled_.store(true, std::memory_order_relaxed);
      reads_done_ = true;
    }
  }
  Act();
}

void StreamCall::PopEntry() {
  const int64_t bytes = entries_.front()->admitted_bytes_;
  bytes_ -= bytes;
  tokens_ -= entries_.front()->admitted_tokens_;
  host_.engine().Release(bytes);
  entries_.pop_front();
}

absl::Status StreamCall::Submit(Entry* entry, EngineRequest* request) {
  const int64_t bytes = request->bytes;
  const int64_t tokens = request->tokens;
  {
    absl::MutexLock lock(&mutex_);
    entry->admitted_bytes_ = bytes;
    entry->admitted_tokens_ = tokens;
    bytes_ += bytes;
    tokens_ += tokens;
  }
  absl::Status status = host_.engine().Submit(request);
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    // Not admitted: nothing to release.
    entry->admitted_bytes_ = 0;
    entry->admitted_tokens_ = 0;
    bytes_ -= bytes;
    tokens_ -= tokens;
  }
  return status;
}

void StreamCall::Answered(Entry* entry) {
  // Once the answer is there, another thread may send it, and with it the last
  // of the stream, before this one goes on.
  const std::shared_ptr<StreamCall> alive = shared_from_this();
  {
    absl::MutexLock lock(&mutex_);
    entry->answered_ = true;
  }
  Act();
}

}  // namespace moe
