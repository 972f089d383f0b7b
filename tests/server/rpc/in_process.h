// A service of its own, without a network: for tests of calls that need no
// model.

#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "experts/base/check.h"
#include "experts/executor.h"
#include "experts/kernels/kernels.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"
#include "server/metrics/metrics.h"
#include "server/rpc/service_context.h"

namespace moe {

class Backend {
 public:
  explicit Backend(ServiceOptions options = {})
      : services_(std::move(options), &registry_, &engine_, &metrics_) {}

  ServiceContext& services() { return services_; }
  Metrics& metrics() { return metrics_; }

 private:
  Executor executor_{1};
  Metrics metrics_;
  Engine engine_{{}, &executor_, BestKernels(), &metrics_};
  ModelRegistry registry_;
  ServiceContext services_;
};

// Serves as long as it lives; the service must outlive it.
class InProcess {
 public:
  explicit InProcess(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    MOE_CHECK(server_ != nullptr);
    channel_ = server_->InProcessChannel(grpc::ChannelArguments());
  }
  ~InProcess() { End(); }

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  void End() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// A call that does not outlast a test that hangs.
class ClientCall : public grpc::ClientContext {
 public:
  ClientCall() {
    set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  }
};

}  // namespace moe
