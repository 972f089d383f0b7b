// moe.v1.MoeService.

#pragma once

#include "moe/v1/moe.grpc.pb.h"
#include "server/rpc/service_context.h"

namespace moe {

// The generated service, with the bytes of messages.
using MoeServiceBase = v1::MoeService::WithRawCallbackMethod_Forward<
    v1::MoeService::WithRawCallbackMethod_ForwardStream<
        v1::MoeService::WithRawCallbackMethod_Route<
            v1::MoeService::WithRawCallbackMethod_ListModels<
                v1::MoeService::WithRawCallbackMethod_GetModel<
                    v1::MoeService::Service>>>>>;

// Thread-safe.
class MoeServiceImpl final : public MoeServiceBase {
 public:
  // The context must outlive the service.
  explicit MoeServiceImpl(ServiceContext* services) : services_(*services) {}

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
  // v1::ListModelsRequest to v1::ListModelsResponse.
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  // v1::GetModelRequest to v1::ModelInfo.
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

 private:
  void Describe(const ServedModel& model, v1::ModelInfo& info) const;

  ServiceContext& services_;
};

}  // namespace moe
