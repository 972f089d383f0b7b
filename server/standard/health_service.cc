#include "server/standard/health_service.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "server/rpc/small_call.h"
#include "server/wire/grpc_status.h"
#include "server/wire/small_message.h"

namespace moe {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr SmallMethod kCheck = {.access = Access::kNothing};

// A watch keeps its name. As with gRPC's own service.
absl::Status CheckName(const std::string& name) {
  constexpr size_t kMaxNameBytes = 200;
  if (name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "service: want at most ", kMaxNameBytes, " bytes, got ", name.size()));
}

HealthCheckResponse::ServingStatus StatusOf(bool serving) {
  return serving ? HealthCheckResponse::SERVING
                 : HealthCheckResponse::NOT_SERVING;
}

}  // namespace

// A watch of one name. The service owns it until OnDone; what it may do next is
// decided under the service's lock, and done without it.
class HealthService::Watcher final
    : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
      public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(HealthService* service, std::string name)
      : service_(*service), name_(std::move(name)) {}

  // Writes what has changed, or ends. After it the object may be gone, unless
  // the caller shares it.
  void Act();
  // Ends the watch with that status, before Act.
  void Refuse(const absl::Status& status) {
    {
      absl::MutexLock lock(&service_.mutex_);
      finished_ = true;
    }
    Finish(ToGrpcStatus(status));
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&service_.mutex_);
      writing_ = false;
      if (!ok) cancelled_ = true;
    }
    Act();
  }
  void OnCancel() override {
    {
      absl::MutexLock lock(&service_.mutex_);
      cancelled_ = true;
    }
    Act();
  }
  void OnDone() override {
    std::shared_ptr<Watcher> self;  // is destroyed without the lock
    absl::MutexLock lock(&service_.mutex_);
    const auto found = service_.watchers_.find(this);
    self = std::move(found->second);
    service_.watchers_.erase(found);
  }

 private:
  HealthCheckResponse::ServingStatus Status() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(service_.mutex_) {
    const auto found = service_.serving_.find(name_);
    return found == service_.serving_.end()
               ? HealthCheckResponse::SERVICE_UNKNOWN
               : StatusOf(found->second);
  }

  HealthService& service_;
  const std::string name_;
  grpc::ByteBuffer message_;  // of the write that runs
  std::optional<HealthCheckResponse::ServingStatus> told_
      ABSL_GUARDED_BY(service_.mutex_);
  bool writing_ ABSL_GUARDED_BY(service_.mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(service_.mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(service_.mutex_) = false;
};

void HealthService::Watcher::Act() {
  const std::shared_ptr<Watcher> alive = shared_from_this();
  HealthCheckResponse response;
  bool finish = false;
  {
    absl::MutexLock lock(&service_.mutex_);
    if (writing_ || finished_) return;
    const auto status = Status();
    if (cancelled_) {
      finish = finished_ = true;
    } else if (told_ == status) {
      return;
    } else {
      writing_ = true;
      told_ = status;
      response.set_status(status);
    }
  }
  if (finish) return Finish(grpc::Status::CANCELLED);
  message_ = Serialize(response);
  StartWrite(&message_);
}

void HealthService::SetServingStatus(const std::string& name, bool serving) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    absl::MutexLock lock(&mutex_);
    serving_[name] = serving;
    for (const auto& [watcher, owned] : watchers_) watchers.push_back(owned);
  }
  for (const auto& watcher : watchers) watcher->Act();
}

void HealthService::SetServingStatus(bool serving) {
  std::vector<std::string> names;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, was] : serving_) names.push_back(name);
  }
  for (const std::string& name : names) SetServingStatus(name, serving);
}

grpc::ServerUnaryReactor* HealthService::Check(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<HealthCheckRequest, HealthCheckResponse>(
      services_, kCheck, *context, *request, response,
      [this](const HealthCheckRequest& asked, HealthCheckResponse* answer) {
        MOE_RETURN_IF_ERROR(CheckName(asked.service()));
        absl::MutexLock lock(&mutex_);
        const auto found = serving_.find(asked.service());
        if (found == serving_.end()) {
          return absl::NotFoundError("service name unknown");
        }
        answer->set_status(StatusOf(found->second));
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  HealthCheckRequest asked;
  absl::Status status =
      ReadSmall(services_, kCheck.access, *context, *request, &asked);
  if (status.ok()) status = CheckName(asked.service());
  if (!status.ok()) asked.Clear();
  const auto watcher = std::make_shared<Watcher>(this, asked.service());
  {
    absl::MutexLock lock(&mutex_);
    watchers_.emplace(watcher.get(), watcher);
  }
  if (status.ok()) {
    watcher->Act();
  } else {
    watcher->Refuse(status);
  }
  return watcher.get();
}

}  // namespace moe
