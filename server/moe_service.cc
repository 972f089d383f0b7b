#include "server/moe_service.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "server/grpc_status.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

// Trailing metadata of RESOURCE_EXHAUSTED: retry policies of gRPC clients obey
// it, others may read it.
constexpr char kRetryPushback[] = "grpc-retry-pushback-ms";

// A stream reads no further while that many of its requests are unanswered, or
// as many bytes as fit into one message.
constexpr size_t kMaxStreamRequests = 32;

// The same moment on a clock that nobody sets.
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

// Counts one request, from its arrival to its answer.
class RequestTimer {
 public:
  RequestTimer(Method method, Metrics& metrics)
      : method_(method), metrics_(metrics) {
    metrics_.RequestStarted();
  }
  // Once.
  void Done(absl::StatusCode code) {
    metrics_.RequestDone(
        method_, code,
        std::chrono::duration<double>(Clock::now() - start_).count());
  }

 private:
  const Method method_;
  Metrics& metrics_;
  const SteadyTime start_ = Clock::now();
};

}  // namespace

// A call that WaitUntilIdle waits for.
class CallCount {
 public:
  explicit CallCount(MoeServiceImpl* service) : service_(*service) {
    absl::MutexLock lock(&service_.mutex_);
    ++service_.num_calls_;
  }
  ~CallCount() {
    absl::MutexLock lock(&service_.mutex_);
    --service_.num_calls_;
  }
  CallCount(const CallCount&) = delete;
  CallCount& operator=(const CallCount&) = delete;

 private:
  MoeServiceImpl& service_;
};

namespace {

// A unary call that is answered at once; deletes itself.
class Call : public grpc::ServerUnaryReactor {
 public:
  Call(Method method, Metrics& metrics) : timer_(method, metrics) {}

  // Answers the call. Thread-safe with respect to OnCancel, once per call.
  void Answer(const absl::Status& status) {
    timer_.Done(status.code());
    grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
  }

  // gRPC's last word on a reactor: it owns itself until here.
  void OnDone() override { const std::unique_ptr<Call> self(this); }

 private:
  RequestTimer timer_;
};

// A unary call that runs on the engine; Request is a WireRequest.
template <typename Request>
class EngineCall final : public Call, public Request {
 public:
  EngineCall(Method method, Metrics& metrics, MoeServiceImpl* service,
             Engine* engine, grpc::CallbackServerContext* context,
             grpc::ByteBuffer* response)
      : Call(method, metrics),
        count_(service),
        engine_(*engine),
        context_(*context),
        response_(*response) {
    this->deadline = ToSteady(context->deadline());
  }

  // Gives the call to the engine, or answers it.
  void Start(absl::Status prepared) {
    if (prepared.ok()) {
      prepared = engine_.Submit(this);
      // From here on the object may be gone.
      if (prepared.ok()) return;
      this->bytes = 0;  // not admitted: nothing to release
    }
    if (absl::IsResourceExhausted(prepared)) {
      context_.AddTrailingMetadata(kRetryPushback,
                                   absl::StrCat(engine_.RetryAfter().count()));
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
    if (status.ok()) response_ = this->TakeAnswer();
    Answer(status);
  }
  void OnDone() override {
    engine_.Release(this->bytes);
    Call::OnDone();
  }

 private:
  const CallCount count_;
  Engine& engine_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

// A ForwardStream call; the service owns it until OnDone.
//
// Reads, engine and writes run on different threads. Each of them notes what
// happened under the lock and then calls Act, which starts what can be started:
// at most one read, one write, and in the end Finish.
class StreamCall final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StreamCall(MoeServiceImpl* service, grpc::CallbackServerContext* context)
      : count_(service),
        service_(*service),
        deadline_(ToSteady(context->deadline())) {}

  // Starts what can be started.
  void Act();

  // Ends the stream before it has begun.
  void Refuse(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      finished_ = true;
    }
    Finish(ToGrpcStatus(status));
  }

  // No further reads.
  void Drain() {
    {
      absl::MutexLock lock(&mutex_);
      draining_ = true;
    }
    Act();
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
  }
  void OnDone() override { service_.StreamDone(this); }

 private:
  // One request of the stream and its answer.
  class Entry final : public ForwardWireRequest {
   public:
    explicit Entry(StreamCall* stream)
        : ForwardWireRequest(v1::ForwardStreamResponse::kResponseFieldNumber),
          stream_(*stream),
          timer_(Method::kForwardStream, stream->service_.metrics_) {
      deadline = stream->deadline_;
    }

    // Takes a message that has been read, and gives it to the engine or
    // answers it.
    void Start(const grpc::ByteBuffer& message);
    const grpc::ByteBuffer& answer() const { return answer_bytes_; }

    bool Cancelled() const override {
      return stream_.cancelled_.load(std::memory_order_relaxed);
    }
    void Finish(const absl::Status& status) override;

    bool answered = false;  // guarded by the stream's mutex_

   private:
    StreamCall& stream_;
    grpc::ByteBuffer answer_bytes_;
    RequestTimer timer_;
  };

  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !reading_ && !reads_done_ && !draining_ &&
           entries_.size() < kMaxStreamRequests &&
           bytes_ < service_.limits_.max_message_bytes;
  }
  bool MayWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !writing_ && !entries_.empty() && entries_.front()->answered;
  }
  bool MayFinish() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_.empty() && (reads_done_ || draining_);
  }
  absl::Status FinalStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (reads_done_) return absl::OkStatus();
    return absl::UnavailableError("server is draining; retry elsewhere");
  }
  void PopEntry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallCount count_;
  MoeServiceImpl& service_;
  const SteadyTime deadline_;
  std::atomic<bool> cancelled_ = false;
  grpc::ByteBuffer incoming_;  // of the read that runs

  absl::Mutex mutex_;
  // In the order of the requests; the front is the next to be written.
  std::deque<std::unique_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all entries
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool acting_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

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
          write = &entries_.front()->answer();
        }
        if (!read && write == nullptr) return;
        acting_ = true;
      }
    }
    if (finish) return Finish(ToGrpcStatus(final_status));
    if (read) StartRead(&incoming_);
    if (write != nullptr) StartWrite(write);
    absl::MutexLock lock(&mutex_);
    acting_ = false;
  }
}

void StreamCall::OnReadDone(bool ok) {
  if (ok) {
    auto owned = std::make_unique<Entry>(this);
    Entry* entry = owned.get();
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;  // read too late: the stream has been drained
      entries_.push_back(std::move(owned));
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
  bytes_ -= entries_.front()->bytes;
  service_.engine_.Release(entries_.front()->bytes);
  entries_.pop_front();
}

void StreamCall::Entry::Start(const grpc::ByteBuffer& message) {
  absl::Status status =
      Prepare(message, stream_.service_.registry_, stream_.service_.limits_);
  if (status.ok()) {
    {
      absl::MutexLock lock(&stream_.mutex_);
      stream_.bytes_ += bytes;
    }
    status = stream_.service_.engine_.Submit(this);
    if (status.ok()) return;
    absl::MutexLock lock(&stream_.mutex_);
    stream_.bytes_ -= bytes;
    bytes = 0;  // not admitted: nothing to release
  }
  Finish(status);
}

void StreamCall::Entry::Finish(const absl::Status& status) {
  if (status.ok()) {
    answer_bytes_ = TakeAnswer();
  } else {
    const grpc::Status shown = ToGrpcStatus(status);
    v1::ForwardStreamResponse response;
    response.mutable_response()->set_request_id(request_id());
    response.set_code(shown.error_code());
    response.set_message(shown.error_message());
    if (absl::IsResourceExhausted(status)) {
      response.set_retry_after_ms(
          stream_.service_.engine_.RetryAfter().count());
    }
    const grpc::Slice slice(response.SerializeAsString());
    answer_bytes_ = grpc::ByteBuffer(&slice, 1);
  }
  timer_.Done(status.code());
  StreamCall& stream = stream_;
  {
    absl::MutexLock lock(&stream.mutex_);
    answered = true;
  }
  stream.Act();
}

grpc::ServerUnaryReactor* MoeServiceImpl::Forward(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto* call = std::make_unique<EngineCall<ForwardWireRequest>>(
                   Method::kForward, metrics_, this, &engine_, context,
                   response)
                   .release();  // owns itself until OnDone
  absl::Status status = Authorize(*context);
  if (status.ok()) status = call->Prepare(*request, registry_, limits_);
  call->Start(std::move(status));
  return call;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
MoeServiceImpl::ForwardStream(grpc::CallbackServerContext* context) {
  auto owned = std::make_shared<StreamCall>(this, context);
  StreamCall* call = owned.get();
  bool draining = false;
  {
    absl::MutexLock lock(&mutex_);
    draining = draining_;
    streams_.emplace(call, std::move(owned));
  }
  const absl::Status status = Authorize(*context);
  if (!status.ok()) {
    call->Refuse(status);
  } else if (draining) {
    call->Drain();
  } else {
    call->Act();
  }
  return call;
}

grpc::ServerUnaryReactor* MoeServiceImpl::Route(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto* call = std::make_unique<EngineCall<RouteWireRequest>>(
                   Method::kRoute, metrics_, this, &engine_, context, response)
                   .release();  // owns itself until OnDone
  absl::Status status = Authorize(*context);
  if (status.ok()) status = call->Prepare(*request, registry_, limits_);
  call->Start(std::move(status));
  return call;
}

grpc::ServerUnaryReactor* MoeServiceImpl::ListModels(
    grpc::CallbackServerContext* context,
    const v1::ListModelsRequest* /*request*/,
    v1::ListModelsResponse* response) {
  auto* call = std::make_unique<Call>(Method::kListModels, metrics_).release();
  const absl::Status status = Authorize(*context);
  if (status.ok()) {
    for (const auto& model : registry_.List()) {
      Describe(*model, *response->add_models());
    }
  }
  call->Answer(status);
  return call;
}

grpc::ServerUnaryReactor* MoeServiceImpl::GetModel(
    grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
    v1::ModelInfo* response) {
  auto* call = std::make_unique<Call>(Method::kGetModel, metrics_).release();
  absl::Status status = Authorize(*context);
  if (status.ok()) {
    const auto model = registry_.Find(request->model());
    if (model.ok()) Describe(**model, *response);
    status = model.status();
  }
  call->Answer(status);
  return call;
}

absl::Status MoeServiceImpl::Authorize(
    const grpc::CallbackServerContext& context) const {
  if (tokens_ == nullptr) return absl::OkStatus();
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found != metadata.end() &&
      tokens_->AcceptsHeader(
          absl::string_view(found->second.data(), found->second.size()))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      "authorization: want \"Bearer TOKEN\" with a token of this server");
}

void MoeServiceImpl::StreamDone(StreamCall* stream) {
  std::shared_ptr<StreamCall> last;  // is destroyed without the lock
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  last = std::move(found->second);
  streams_.erase(found);
}

void MoeServiceImpl::BeginDrain() {
  std::vector<std::shared_ptr<StreamCall>> streams;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [stream, owned] : streams_) streams.push_back(owned);
  }
  for (const auto& stream : streams) stream->Drain();
}

bool MoeServiceImpl::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_calls_ == 0;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

void MoeServiceImpl::Describe(const ServedModel& served,
                              v1::ModelInfo& info) const {
  const Model& model = *served.model;
  info.set_name(served.name);
  info.set_family(model.spec().family);
  info.set_d_model(model.spec().d_model);
  info.set_weights_bytes(model.weights_bytes());
  info.set_weight_format(served.weight_format);
  info.set_max_message_bytes(limits_.max_message_bytes);
  info.set_max_request_tokens(limits_.max_request_tokens);
  for (const LayerSpec& layer : model.spec().layers) {
    v1::LayerInfo& out = *info.add_layers();
    out.set_layer(layer.index);
    out.set_dense(!layer.rule.has_value());
    out.set_d_model(layer.d_model);
    out.set_d_ff(layer.experts.expert.d_ff);
    if (layer.rule.has_value()) {
      out.set_num_experts(layer.rule->num_experts);
      out.set_top_k(layer.rule->top_k);
    }
    if (layer.shared_expert.has_value()) {
      out.set_shared_d_ff(layer.shared_expert->expert.d_ff);
    }
    out.set_parameters(layer.parameters());
  }
}

}  // namespace moe
