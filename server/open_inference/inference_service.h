// inference.GRPCInferenceService, the Open Inference Protocol: another way to
// say what moe.v1 says. Requests are checked, admitted and run as those of
// moe.v1.

#pragma once

#include "inference/inference.grpc.pb.h"
#include "server/models/model_manager.h"
#include "server/rpc/service_context.h"

namespace moe {

// The generated service, with the bytes of messages for the calls that carry
// tensors, and with messages for the others.
template <typename Base>
using InferenceProbes =
    inference::GRPCInferenceService::WithCallbackMethod_ServerLive<
        inference::GRPCInferenceService::WithCallbackMethod_ServerReady<
            inference::GRPCInferenceService::WithCallbackMethod_ModelReady<
                inference::GRPCInferenceService::
                    WithCallbackMethod_ServerMetadata<Base>>>>;
template <typename Base>
using InferenceModels =
    inference::GRPCInferenceService::WithCallbackMethod_ModelMetadata<
        inference::GRPCInferenceService::WithCallbackMethod_ModelConfig<
            inference::GRPCInferenceService::WithCallbackMethod_ModelStatistics<
                Base>>>;
template <typename Base>
using InferenceRepository =
    inference::GRPCInferenceService::WithCallbackMethod_RepositoryIndex<
        inference::GRPCInferenceService::WithCallbackMethod_RepositoryModelLoad<
            inference::GRPCInferenceService::
                WithCallbackMethod_RepositoryModelUnload<Base>>>;
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

  // Probes: not counted; the first two need no token.
  grpc::ServerUnaryReactor* ServerLive(
      grpc::CallbackServerContext* context,
      const inference::ServerLiveRequest* request,
      inference::ServerLiveResponse* response) override;
  grpc::ServerUnaryReactor* ServerReady(
      grpc::CallbackServerContext* context,
      const inference::ServerReadyRequest* request,
      inference::ServerReadyResponse* response) override;
  grpc::ServerUnaryReactor* ModelReady(
      grpc::CallbackServerContext* context,
      const inference::ModelReadyRequest* request,
      inference::ModelReadyResponse* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(
      grpc::CallbackServerContext* context,
      const inference::ServerMetadataRequest* request,
      inference::ServerMetadataResponse* response) override;

  grpc::ServerUnaryReactor* ModelMetadata(
      grpc::CallbackServerContext* context,
      const inference::ModelMetadataRequest* request,
      inference::ModelMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelConfig(
      grpc::CallbackServerContext* context,
      const inference::ModelConfigRequest* request,
      inference::ModelConfigResponse* response) override;
  grpc::ServerUnaryReactor* ModelStatistics(
      grpc::CallbackServerContext* context,
      const inference::ModelStatisticsRequest* request,
      inference::ModelStatisticsResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryIndex(
      grpc::CallbackServerContext* context,
      const inference::RepositoryIndexRequest* request,
      inference::RepositoryIndexResponse* response) override;
  // Responds when it is done.
  grpc::ServerUnaryReactor* RepositoryModelLoad(
      grpc::CallbackServerContext* context,
      const inference::RepositoryModelLoadRequest* request,
      inference::RepositoryModelLoadResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(
      grpc::CallbackServerContext* context,
      const inference::RepositoryModelUnloadRequest* request,
      inference::RepositoryModelUnloadResponse* response) override;
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
