#include "server/rpc/unary_call.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "server/common/steady_time.h"
#include "server/rpc/request_timer.h"
#include "server/wire/grpc_status.h"

namespace moe {
namespace {

// Trailing metadata of RESOURCE_EXHAUSTED: retry policies of gRPC clients obey
// it, others may read it.
constexpr char kRetryPushback[] = "grpc-retry-pushback-ms";

// A unary call that runs on the engine; deletes itself.
class EngineCall final : public grpc::ServerUnaryReactor,
                         public RequestObserver {
 public:
  EngineCall(ServiceContext* services, const UnaryMethod& method,
             grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : count_(&services->open_calls()),
        services_(*services),
        method_(method),
        context_(*context),
        response_(*response),
        timer_(method.method, services->metrics()) {}

  // Gives the call to the engine, or ends it. The object may be gone
  // afterwards.
  void Start(const grpc::ByteBuffer& message) {
    timer_.Received(message);
    const absl::Status status = Submit(message);
    if (status.ok()) return;
    if (absl::IsResourceExhausted(status)) {
      context_.AddTrailingMetadata(
          kRetryPushback,
          absl::StrCat(services_.engine().RetryAfter().count()));
    }
    Respond(status);
  }

  void OnCancel() override {
    cancelled_.store(true, std::memory_order_relaxed);
  }
  bool Cancelled() const override {
    return cancelled_.load(std::memory_order_relaxed);
  }
  void OnFinished(const absl::Status& status) override {
    if (status.ok()) {
      response_ = request_->TakeResponse();
      send_ = services_.BeginSend(context_.c_call());
    }
    Respond(status);
  }
  // gRPC's last word on a reactor: it owns itself until here.
  void OnDone() override {
    if (send_.has_value()) services_.EndSend(*send_);
    services_.engine().Release(admitted_bytes_);
    const std::unique_ptr<EngineCall> self(this);
  }

 private:
  // If OK, the object may be gone afterwards.
  absl::Status Submit(const grpc::ByteBuffer& message) {
    MOE_RETURN_IF_ERROR(services_.access().Authorize(context_));
    RequestLabel label;
    MOE_ASSIGN_OR_RETURN(ParsedRequest parsed,
                         method_.parse(message,
                                       {.registry = services_.registry(),
                                        .limits = services_.limits(),
                                        .now = SteadyClock::Real().Now()},
                                       &label));
    request_.emplace(std::move(parsed), ServiceContext::DeadlineOf(context_),
                     this);
    EngineRequest& request = request_->engine_request();
    admitted_bytes_ = request.bytes();
    absl::Status status = services_.engine().Submit(&request);
    if (!status.ok()) admitted_bytes_ = 0;  // nothing to release
    return status;
  }
  void Respond(const absl::Status& status) {
    timer_.Done(status.code(), &response_);
    Finish(ToGrpcStatus(status));
  }

  const OpenCalls::Count count_;
  ServiceContext& services_;
  const UnaryMethod method_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  RequestTimer timer_;
  std::optional<CallRequest> request_;
  int64_t admitted_bytes_ = 0;
  std::optional<SendWatch::Send> send_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* RunOnEngine(ServiceContext* services,
                                      const UnaryMethod& method,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& message,
                                      grpc::ByteBuffer* response) {
  auto* const call =
      std::make_unique<EngineCall>(services, method, context, response)
          .release();  // owns itself until OnDone
  call->Start(message);
  return call;
}

}  // namespace moe
