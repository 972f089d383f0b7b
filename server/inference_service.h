// inference.GRPCInferenceService, the Open Inference Protocol: another way to
// say what moe.v1 says. Requests are checked, admitted and run as those of
// moe.v1.

#pragma once

#include "inference/inference.grpc.pb.h"
#include "server/rpc_calls.h"

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
        inference::GRPCInferenceService::WithCallbackMethod_ModelConfig<Base>>;
template <typename Base>
using InferenceCalls =
    inference::GRPCInferenceService::WithRawCallbackMethod_ModelInfer<
        inference::GRPCInferenceService::WithRawCallbackMethod_ModelStreamInfer<
            Base>>;
using InferenceServiceBase = InferenceProbes<
    InferenceModels<InferenceCalls<inference::GRPCInferenceService::Service>>>;

// Thread-safe.
class InferenceServiceImpl final : public InferenceServiceBase {
 public:
  // The host must outlive the service.
  explicit InferenceServiceImpl(RpcHost* host) : host_(*host) {}

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
  // inference::ModelInferRequest to inference::ModelInferResponse.
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  // inference::ModelInferRequest to inference::ModelStreamInferResponse.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      grpc::CallbackServerContext* context) override;

 private:
  RpcHost& host_;
};

}  // namespace moe
