#include "server/inference_service.h"

#include "server/grpc_status.h"
#include "server/infer_metadata.h"
#include "server/infer_request.h"
#include "server/version.h"

namespace moe {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerLive(
    grpc::CallbackServerContext* context,
    const inference::ServerLiveRequest* /*request*/,
    inference::ServerLiveResponse* response) {
  response->set_live(true);
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerReady(
    grpc::CallbackServerContext* context,
    const inference::ServerReadyRequest* /*request*/,
    inference::ServerReadyResponse* response) {
  response->set_ready(host_.serving());
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelReady(
    grpc::CallbackServerContext* context,
    const inference::ModelReadyRequest* request,
    inference::ModelReadyResponse* response) {
  const absl::Status status = host_.Authorize(*context);
  response->set_ready(
      status.ok() &&
      FindInferTarget(host_.registry(), request->name(), request->version())
          .ok());
  return Answer(context, status);
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerMetadata(
    grpc::CallbackServerContext* context,
    const inference::ServerMetadataRequest* /*request*/,
    inference::ServerMetadataResponse* response) {
  const absl::Status status = host_.Authorize(*context);
  if (status.ok()) {
    response->set_name("moe-server");
    response->set_version(kVersion);
    response->add_extensions("model_configuration");
  }
  return Answer(context, status);
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelMetadata(
    grpc::CallbackServerContext* context,
    const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  return host_.AnswerNow(Method::kModelMetadata, context, [&] {
    const auto target =
        FindInferTarget(host_.registry(), request->name(), request->version());
    if (target.ok()) {
      DescribeMetadata(*target, request->name(), host_.limits(), response);
    }
    return target.status();
  });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelConfig(
    grpc::CallbackServerContext* context,
    const inference::ModelConfigRequest* request,
    inference::ModelConfigResponse* response) {
  return host_.AnswerNow(Method::kModelConfig, context, [&] {
    const auto target =
        FindInferTarget(host_.registry(), request->name(), request->version());
    if (target.ok()) {
      DescribeConfig(*target, request->name(), host_.limits(),
                     response->mutable_config());
    }
    return target.status();
  });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelInfer(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return host_.Run<InferWireRequest>(Method::kModelInfer, context, request,
                                     response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
InferenceServiceImpl::ModelStreamInfer(grpc::CallbackServerContext* context) {
  return host_.RunStream<InferWireRequest>(Method::kModelStreamInfer, context);
}

}  // namespace moe
