// moe.v1.MoeService: checks requests, hands them to the engine, converts the
// answers. No maths, and no thread of gRPC waits for compute.

#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "moe/v1/moe.grpc.pb.h"
#include "server/engine.h"
#include "server/metrics.h"
#include "server/model_registry.h"
#include "server/token_file.h"
#include "server/wire_request.h"

namespace moe {

class StreamCall;

// The generated service, with the bytes of messages for the calls that carry
// tensors, and with messages for the others.
using MoeServiceBase = v1::MoeService::WithRawCallbackMethod_Forward<
    v1::MoeService::WithRawCallbackMethod_ForwardStream<
        v1::MoeService::WithRawCallbackMethod_Route<
            v1::MoeService::WithCallbackMethod_ListModels<
                v1::MoeService::WithCallbackMethod_GetModel<
                    v1::MoeService::Service>>>>>;

// Thread-safe.
class MoeServiceImpl final : public MoeServiceBase {
 public:
  // All must outlive the service.
  MoeServiceImpl(const ServiceLimits& limits, const ModelRegistry* registry,
                 Engine* engine, Metrics* metrics)
      : limits_(limits),
        registry_(*registry),
        engine_(*engine),
        metrics_(*metrics) {}

  // From now on callers must show one of these tokens. Call it before the first
  // RPC. The object must outlive the service.
  void RequireToken(TokenFile* tokens) { tokens_ = tokens; }

  // v1::ForwardRequest to v1::ForwardResponse.
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  // v1::ForwardRequest to v1::ForwardStreamResponse.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ForwardStream(
      grpc::CallbackServerContext* context) override;
  // v1::RouteRequest to v1::RouteResponse.
  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListModels(
      grpc::CallbackServerContext* context,
      const v1::ListModelsRequest* request,
      v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::ModelInfo* response) override;

  // Ends streams once what they sent is answered. Call it after
  // Engine::BeginDrain: later messages are answered UNAVAILABLE.
  void BeginDrain();
  // Waits until all calls have been answered and their answers sent. False if
  // that takes longer than `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);

 private:
  friend class CallCount;
  friend class StreamCall;

  // UNAUTHENTICATED, if the caller shows no token and has to.
  absl::Status Authorize(const grpc::CallbackServerContext& context) const;
  // The end of a stream.
  void StreamDone(StreamCall* stream);
  void Describe(const ServedModel& model, v1::ModelInfo& info) const;

  const ServiceLimits limits_;
  const ModelRegistry& registry_;
  Engine& engine_;
  Metrics& metrics_;
  TokenFile* tokens_ = nullptr;

  absl::Mutex mutex_;
  int64_t num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<StreamCall*, std::shared_ptr<StreamCall>> streams_
      ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace moe
