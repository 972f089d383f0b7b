#include "server/open_inference/inference_service.h"

#include <optional>
#include <string>
#include <utility>

#include "server/common/version.h"
#include "server/open_inference/infer_metadata.h"
#include "server/open_inference/infer_request.h"
#include "server/rpc/stream_call.h"
#include "server/rpc/unary_call.h"
#include "server/wire/grpc_status.h"

namespace moe {
namespace {

grpc::ServerUnaryReactor* Respond(grpc::CallbackServerContext* context,
                                  const absl::Status& status) {
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// There is one repository, and it has no name.
absl::Status CheckRepository(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  return absl::UnimplementedError("repository_name: want none");
}

const char* StateName(ModelStatus::State state) {
  switch (state) {
    case ModelStatus::State::kLoading:
      return "LOADING";
    case ModelStatus::State::kReady:
      return "READY";
    default:
      return "UNAVAILABLE";
  }
}

}  // namespace

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerLive(
    grpc::CallbackServerContext* context,
    const inference::ServerLiveRequest* /*request*/,
    inference::ServerLiveResponse* response) {
  response->set_live(true);
  return Respond(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerReady(
    grpc::CallbackServerContext* context,
    const inference::ServerReadyRequest* /*request*/,
    inference::ServerReadyResponse* response) {
  response->set_ready(services_.serving());
  return Respond(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelReady(
    grpc::CallbackServerContext* context,
    const inference::ModelReadyRequest* request,
    inference::ModelReadyResponse* response) {
  const absl::Status status = services_.access().Authorize(*context);
  response->set_ready(
      status.ok() &&
      FindInferTarget(services_.registry(), request->name(), request->version())
          .ok());
  return Respond(context, status);
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerMetadata(
    grpc::CallbackServerContext* context,
    const inference::ServerMetadataRequest* /*request*/,
    inference::ServerMetadataResponse* response) {
  const absl::Status status = services_.access().Authorize(*context);
  if (status.ok()) {
    response->set_name("moe-server");
    response->set_version(kVersion);
    for (const char* name :
         {"model_configuration", "model_repository", "statistics"}) {
      response->add_extensions(name);
    }
  }
  return Respond(context, status);
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelMetadata(
    grpc::CallbackServerContext* context,
    const inference::ModelMetadataRequest* request,
    inference::ModelMetadataResponse* response) {
  return RespondNow(services_, Method::kModelMetadata, *context, [&] {
    const auto target = FindInferTarget(services_.registry(), request->name(),
                                        request->version());
    if (target.ok()) {
      DescribeMetadata(*target, request->name(), services_.limits(), response);
    }
    return target.status();
  });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelConfig(
    grpc::CallbackServerContext* context,
    const inference::ModelConfigRequest* request,
    inference::ModelConfigResponse* response) {
  return RespondNow(services_, Method::kModelConfig, *context, [&] {
    const auto target = FindInferTarget(services_.registry(), request->name(),
                                        request->version());
    if (target.ok()) {
      DescribeConfig(*target, request->name(), services_.limits(),
                     response->mutable_config());
    }
    return target.status();
  });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelStatistics(
    grpc::CallbackServerContext* context,
    const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  return RespondNow(services_, Method::kModelStatistics, *context, [&] {
    if (request->name().empty()) {
      for (auto& model : services_.registry().List()) {
        const std::string name = model->name;
        DescribeStatistics({.served = std::move(model), .layer = std::nullopt},
                           name, response->add_model_stats());
      }
      return absl::OkStatus();
    }
    const auto target = FindInferTarget(services_.registry(), request->name(),
                                        request->version());
    if (target.ok()) {
      DescribeStatistics(*target, request->name(), response->add_model_stats());
    }
    return target.status();
  });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryIndex(
    grpc::CallbackServerContext* context,
    const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  return RespondNow(services_, Method::kRepositoryIndex, *context, [&] {
    for (const ModelStatus& model : models_.List()) {
      const bool ready = model.state == ModelStatus::State::kReady;
      if (request->ready() && !ready) continue;
      auto& entry = *response->add_models();
      entry.set_name(model.name);
      if (ready) entry.set_version(std::string(kInferVersion));
      entry.set_state(StateName(model.state));
      entry.set_reason(model.reason);
    }
    return CheckRepository(request->repository_name());
  });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryModelLoad(
    grpc::CallbackServerContext* context,
    const inference::RepositoryModelLoadRequest* request,
    inference::RepositoryModelLoadResponse* /*response*/) {
  UnaryCall* const call =
      UnaryCall::Make(Method::kRepositoryModelLoad, services_.metrics());
  absl::Status status = services_.access().AuthorizeControl(*context);
  if (status.ok()) status = CheckRepository(request->repository_name());
  if (status.ok() && !request->parameters().empty()) {
    // They would configure a model; here its folder does.
    status = absl::UnimplementedError("parameters: want none");
  }
  if (!status.ok()) {
    call->Respond(status);
  } else {
    models_.Load(request->model_name(),
                 [call](const absl::Status& loaded) { call->Respond(loaded); });
  }
  return call;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryModelUnload(
    grpc::CallbackServerContext* context,
    const inference::RepositoryModelUnloadRequest* request,
    inference::RepositoryModelUnloadResponse* /*response*/) {
  UnaryCall* const call =
      UnaryCall::Make(Method::kRepositoryModelUnload, services_.metrics());
  absl::Status status = services_.access().AuthorizeControl(*context);
  if (status.ok()) status = CheckRepository(request->repository_name());
  if (!status.ok()) {
    call->Respond(status);
  } else {
    models_.Unload(request->model_name(), [call](const absl::Status& unloaded) {
      call->Respond(unloaded);
    });
  }
  return call;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelInfer(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RunOnEngine(&services_, kModelInfer, context, *request, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
InferenceServiceImpl::ModelStreamInfer(grpc::CallbackServerContext* context) {
  return RunStream(&services_, kModelStreamInfer, context);
}

}  // namespace moe
