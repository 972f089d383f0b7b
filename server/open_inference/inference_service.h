// inference.GRPCInferenceService, the Open Inference Protocol: another way to
// say what moe.v1 says. Requests are checked, admitted and run as those of
// moe.v1.

#pragma once

#include "inference/inference.grpc.pb.h"
#include "server/models/model_manager.h"
#include "server/rpc/service_context.h"

namespace moe {

// The generated service, with the bytes of messages.
template <typename Base>
using InferenceProbes =
    inference::GRPCInferenceService::WithRawCallbackMethod_ServerLive<
        inference::GRPCInferenceService::WithRawCallbackMethod_ServerReady<
            inference::GRPCInferenceService::WithRawCallbackMethod_ModelReady<
                inference::GRPCInferenceService::
                    WithRawCallbackMethod_ServerMetadata<Base>>>>;
template <typename Base>
using InferenceModels =
    inference::GRPCInferenceService::WithRawCallbackMethod_ModelMetadata<
        inference::GRPCInferenceService::WithRawCallbackMethod_ModelConfig<
            inference::GRPCInferenceService::
                WithRawCallbackMethod_ModelStatistics<Base>>>;
template <typename Base>
using InferenceRepository =
    inference::GRPCInferenceService::WithRawCallbackMethod_RepositoryIndex<
        inference::GRPCInferenceService::
            WithRawCallbackMethod_RepositoryModelLoad<
                inference::GRPCInferenceService::
                    WithRawCallbackMethod_RepositoryModelUnload<Base>>>;
template <typename Base>
using InferenceCalls =
    inference::GRPCInferenceService::WithRawCallbackMethod_ModelInfer<
        inference::GRPCInferenceService::WithRawCallbackMethod_ModelStreamInfer<
            Base>>;
using InferenceServiceBase =
    InferenceProbes<InferenceModels<InferenceRepository<
        InferenceCalls<inference::GRPCInferenceService::Service>>>>;

// Thread-safe.
class InferenceServiceImpl final : public InferenceServiceBase {
 public:
  // Both must outlive the service.
  InferenceServiceImpl(ServiceContext* services, ModelManager* models)
      : services_(*services), models_(*models) {}

  // inference::NAMERequest to inference::NAMEResponse, each.
  //
  // Probes: not counted; the first two need no token.
  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;

  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelStatistics(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryIndex(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  // Responds when it is done.
  grpc::ServerUnaryReactor* RepositoryModelLoad(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  // inference::ModelInferRequest to inference::ModelInferResponse.
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  // inference::ModelInferRequest to inference::ModelStreamInferResponse.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      grpc::CallbackServerContext* context) override;

 private:
  ServiceContext& services_;
  ModelManager& models_;
};

}  // namespace moe
