// What the gRPC services have in common: who may call, and the calls that run
// on the engine, from the bytes of a request to those of its answer. No maths,
// and no thread of gRPC waits for compute.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"
#include "server/metrics/metrics.h"
#include "server/rpc/wire_request.h"
#include "server/shards/shard_fleet.h"
#include "server/transport/send_watch.h"
#include "server/transport/token_file.h"

namespace moe {

class StreamCall;

// Where calls of all services are admitted and counted. Thread-safe.
class RpcHost {
 public:
  // All must outlive the host.
  RpcHost(const ServiceLimits& limits, const ModelRegistry* registry,
          Engine* engine, Metrics* metrics);

  // From now on callers must show one of these tokens. Call it before the first
  // RPC. The object must outlive the host.
  void RequireToken(const TokenFile* tokens) { tokens_ = tokens; }
  // UNAUTHENTICATED, if the caller shows no token and has to.
  absl::Status Authorize(const grpc::CallbackServerContext& context) const;

  // From now on callers may load and unload models: those who show one of these
  // tokens or, if null, all who may call. As RequireToken.
  void AllowModelControl(const TokenFile* admin_tokens) {
    model_control_ = true;
    admin_tokens_ = admin_tokens;
  }
  // PERMISSION_DENIED, if nobody may load and unload models, or the caller
  // shows a token which is no admin's; UNAUTHENTICATED, if it shows none that
  // is known.
  absl::Status AuthorizeControl(
      const grpc::CallbackServerContext& context) const;

  // Answers a call at once by `fill`, which returns the status.
  grpc::ServerUnaryReactor* AnswerNow(Method method,
                                      grpc::CallbackServerContext* context,
                                      absl::FunctionRef<absl::Status()> fill);
  // Answers a call by the engine. Request: a WireRequest.
  template <typename Request>
  grpc::ServerUnaryReactor* Run(Method method,
                                grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response);
  // Likewise each message of a stream; Request has a constructor for streams,
  // and StreamError. Answers come in the order of the messages.
  template <typename Request>
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RunStream(
      Method method, grpc::CallbackServerContext* context);

  // Ends streams once what they sent is answered. Call it after
  // Engine::BeginDrain: later messages are answered UNAVAILABLE.
  void BeginDrain();
  // Waits until all calls that run on the engine have been answered and their
  // answers sent. False if that takes longer than `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);

  // The shards of a front, to be shown; null: this server is none. Before the
  // first RPC; they must outlive the host.
  void ShowShards(const ShardFleet* shards) { shards_ = shards; }
  const ShardFleet* shards() const { return shards_; }

  // Whether the server says that it is healthy.
  void SetServing(bool serving) { serving_.store(serving); }
  bool serving() const { return serving_.load(); }

  const ServiceLimits& limits() const { return limits_; }
  const ModelRegistry& registry() const { return registry_; }
  Engine& engine() const { return engine_; }
  Metrics& metrics() const { return metrics_; }
  SendWatch& send_watch() { return send_watch_; }

 private:
  friend class CallCount;
  friend class StreamCall;

  // Lets a stream begin, or refuses it.
  void Begin(std::shared_ptr<StreamCall> stream,
             const grpc::CallbackServerContext& context);
  // The end of a stream.
  void StreamDone(StreamCall* stream);

  const ServiceLimits limits_;
  const ModelRegistry& registry_;
  Engine& engine_;
  Metrics& metrics_;
  const TokenFile* tokens_ = nullptr;
  bool model_control_ = false;
  const TokenFile* admin_tokens_ = nullptr;
  const ShardFleet* shards_ = nullptr;
  std::atomic<bool> serving_ = false;
  SendWatch send_watch_;

  absl::Mutex mutex_;
  int64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<StreamCall*, std::shared_ptr<StreamCall>> streams_
      ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

// Counts one request, from its arrival to its answer.
class RequestTimer {
 public:
  RequestTimer(Method method, Metrics& metrics)
      : method_(method), metrics_(metrics) {
    metrics_.RequestStarted();
  }
  // Messages with tensors only: the others are small.
  void Received(const grpc::ByteBuffer& message) {
    metrics_.Received(method_, static_cast<int64_t>(message.Length()));
  }
  // Once.
  void Done(absl::StatusCode code, const grpc::ByteBuffer* answer) {
    const auto now = std::chrono::steady_clock::now();
    metrics_.RequestDone(
        method_, code, std::chrono::duration<double>(now - start_).count(),
        answer == nullptr ? 0 : static_cast<int64_t>(answer->Length()));
  }

 private:
  const Method method_;
  Metrics& metrics_;
  const SteadyTime start_ = std::chrono::steady_clock::now();
};

// A call that WaitUntilIdle waits for.
class CallCount {
 public:
  explicit CallCount(RpcHost* host) : host_(*host) {
    absl::MutexLock lock(&host_.mutex_);
    ++host_.num_calls_;
  }
  ~CallCount() {
    absl::MutexLock lock(&host_.mutex_);
    --host_.num_calls_;
  }
  CallCount(const CallCount&) = delete;
  CallCount& operator=(const CallCount&) = delete;

 private:
  RpcHost& host_;
};

// A unary call that is counted; deletes itself.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(Method method, Metrics& metrics) : timer_(method, metrics) {}

  // Answers the call. Thread-safe with respect to OnCancel, once per call.
  // answer: the message, if it has tensors; it is counted.
  void Answer(const absl::Status& status,
              const grpc::ByteBuffer* answer = nullptr);

  // gRPC's last word on a reactor: it owns itself until here.
  void OnDone() override { const std::unique_ptr<UnaryCall> self(this); }

 protected:
  RequestTimer timer_;
};

// The same moment on a clock that nobody sets.
SteadyTime ToSteady(std::chrono::system_clock::time_point deadline);

// For RESOURCE_EXHAUSTED: tells the caller when to try again.
void AddRetryPushback(const Engine& engine,
                      grpc::CallbackServerContext& context);

// A unary call that runs on the engine.
template <typename Request>
class EngineCall final : public UnaryCall, public Request {
 public:
  EngineCall(Method method, RpcHost* host, grpc::CallbackServerContext* context,
             const grpc::ByteBuffer& request, grpc::ByteBuffer* response)
      : UnaryCall(method, host->metrics()),
        count_(host),
        send_watch_(host->send_watch()),
        engine_(host->engine()),
        context_(*context),
        response_(*response) {
    this->deadline = ToSteady(context->deadline());
    timer_.Received(request);
  }

  // Gives the call to the engine, or answers it.
  void Start(absl::Status prepared) {
    if (prepared.ok()) {
      prepared = engine_.Submit(this);
      // From here on the object may be gone.
      if (prepared.ok()) return;
    }
    this->bytes = 0;  // not admitted: nothing to release
    if (absl::IsResourceExhausted(prepared)) {
      AddRetryPushback(engine_, context_);
    }
    Answer(prepared);
  }

  void OnCancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
  }
  bool Cancelled() const override {
    return cancelled_.load(std::memory_order_relaxed);
  }
  void Finish(const absl::Status& status) override {
    if (status.ok()) {
      response_ = this->TakeAnswer();
      send_ = send_watch_.Begin(context_.c_call());
    }
    Answer(status, &response_);
  }
  void OnDone() override {
    if (send_.has_value()) send_watch_.End(*send_);
    engine_.Release(this->bytes);
    UnaryCall::OnDone();
  }

 private:
  const CallCount count_;
  SendWatch& send_watch_;
  std::optional<SendWatch::Send> send_;
  Engine& engine_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  std::atomic<bool> cancelled_ = false;
};

// A call with a stream of requests and of answers; the host owns it until
// OnDone.
//
// Reads, engine and writes run on different threads. Each of them notes what
// happened under the lock and then calls Act, which starts what can be started:
// at most one read, one write, and in the end Finish.
class StreamCall
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<StreamCall> {
 public:
  StreamCall(RpcHost* host, grpc::CallbackServerContext& context)
      : count_(host),
        host_(*host),
        call_(context.c_call()),
        deadline_(ToSteady(context.deadline())) {}

  // Starts what can be started.
  void Act();
  // Ends the stream before it has begun.
  void Refuse(const absl::Status& status);
  // No further reads.
  void Drain();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
  }
  void OnDone() override { host_.StreamDone(this); }

 protected:
  // One request of the stream and its answer.
  class Entry {
   public:
    Entry() = default;
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    virtual ~Entry() = default;

    // Takes a message that has been read, and gives it to the engine or
    // answers it.
    virtual void Start(const grpc::ByteBuffer& message) = 0;

   protected:
    friend class StreamCall;
    grpc::ByteBuffer answer_bytes_;
    int64_t admitted_bytes_ = 0;   // guarded by the stream's mutex_
    int64_t admitted_tokens_ = 0;  // likewise, as is the next
    bool answered_ = false;
  };
  virtual std::unique_ptr<Entry> NewEntry() = 0;

  // For entries.
  RpcHost& host() const { return host_; }
  SteadyTime deadline() const { return deadline_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  absl::Status Submit(Entry* entry, EngineRequest* request);
  void Answered(Entry* entry);

 private:
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !writing_ && !entries_.empty() && entries_.front()->answered_;
  }
  bool MayFinish() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_.empty() && (reads_done_ || draining_);
  }
  absl::Status FinalStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PopEntry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallCount count_;
  RpcHost& host_;
  grpc_call* const call_;
  const SteadyTime deadline_;
  std::atomic<bool> cancelled_ = false;
  grpc::ByteBuffer incoming_;  // of the read that runs
  SendWatch::Send send_;       // of the write that runs

  absl::Mutex mutex_;
  // In the order of the requests; the front is the next to be written.
  std::deque<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // of all entries
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // likewise
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool acting_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// A StreamCall whose messages are Requests.
template <typename Request>
class StreamCallOf final : public StreamCall {
 public:
  StreamCallOf(Method method, RpcHost* host,
               grpc::CallbackServerContext& context)
      : StreamCall(host, context), method_(method) {}

 private:
  class RequestEntry final : public Entry, public Request {
   public:
    explicit RequestEntry(StreamCallOf* stream)
        : Request(typename Request::Streamed()),
          stream_(*stream),
          timer_(stream->method_, stream->host().metrics()) {
      this->deadline = stream->deadline();
    }
    void Start(const grpc::ByteBuffer& message) override {
      timer_.Received(message);
      absl::Status status = this->Prepare(message, stream_.host().registry(),
                                          stream_.host().limits());
      if (status.ok()) {
        status = stream_.Submit(this, this);
        if (status.ok()) return;
      }
      Finish(status);
    }
    bool Cancelled() const override { return stream_.cancelled(); }
    void Finish(const absl::Status& status) override {
      const int64_t retry_after_ms =
          absl::IsResourceExhausted(status)
              ? stream_.host().engine().RetryAfter().count()
              : 0;
      this->answer_bytes_ = status.ok()
                                ? this->TakeAnswer()
                                : this->StreamError(status, retry_after_ms);
      timer_.Done(status.code(), &this->answer_bytes_);
      stream_.Answered(this);
    }

   private:
    StreamCallOf& stream_;
    RequestTimer timer_;
  };

  std::unique_ptr<Entry> NewEntry() override {
    return std::make_unique<RequestEntry>(this);
  }

  const Method method_;
};

template <typename Request>
grpc::ServerUnaryReactor* RpcHost::Run(Method method,
                                       grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) {
  auto* call =
      std::make_unique<EngineCall<Request>>(method, this, context, *request,
                                            response)
          .release();  // owns itself until OnDone
  absl::Status status = Authorize(*context);
  if (status.ok()) status = call->Prepare(*request, registry_, limits_);
  call->Start(std::move(status));
  return call;
}

template <typename Request>
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RpcHost::RunStream(
    Method method, grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<StreamCallOf<Request>>(method, this, *context);
  auto* call = stream.get();
  Begin(std::move(stream), *context);
  return call;
}

}  // namespace moe
