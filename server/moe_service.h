// moe.v1.MoeService: checks requests, hands them to the engine, converts the
// answers. No maths, and no thread of gRPC waits for compute.

#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "moe/v1/moe.grpc.pb.h"
#include "server/engine.h"
#include "server/metrics.h"
#include "server/model_registry.h"

namespace moe {

struct ServiceLimits {
  int64_t max_message_bytes = 0;
  int64_t max_request_tokens = 0;
};

// Calls from their arrival until their answer has been sent. Thread-safe.
class OpenCalls {
 public:
  void Add();
  void Remove();
  // Returns once there is none, at `deadline` the latest.
  void WaitUntilNone(absl::Time deadline);

 private:
  absl::Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-safe.
class MoeServiceImpl final : public v1::MoeService::CallbackService {
 public:
  // All must outlive the service.
  MoeServiceImpl(const ServiceLimits& limits, const ModelRegistry* registry,
                 Engine* engine, Metrics* metrics)
      : limits_(limits),
        registry_(*registry),
        engine_(*engine),
        metrics_(*metrics) {}

  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const v1::ForwardRequest* request,
                                    v1::ForwardResponse* response) override;
  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context,
                                  const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(
      grpc::CallbackServerContext* context,
      const v1::ListModelsRequest* request,
      v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::ModelInfo* response) override;

  OpenCalls& open_calls() { return open_calls_; }

 private:
  void Describe(const ServedModel& model, v1::ModelInfo& info) const;

  const ServiceLimits limits_;
  const ModelRegistry& registry_;
  Engine& engine_;
  Metrics& metrics_;
  OpenCalls open_calls_;
};

}  // namespace moe
