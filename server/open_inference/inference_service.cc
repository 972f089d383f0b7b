#include "server/open_inference/inference_service.h"

#include <optional>
#include <string>
#include <utility>

#include "server/common/version.h"
#include "server/open_inference/infer_metadata.h"
#include "server/open_inference/infer_request.h"
#include "server/rpc/small_call.h"
#include "server/rpc/stream_call.h"
#include "server/rpc/unary_call.h"
#include "server/wire/small_message.h"

namespace moe {
namespace {

// Probes are not counted.
constexpr SmallMethod kServerProbe = {.access = Access::kNothing};
constexpr SmallMethod kModelProbe = {};
constexpr SmallMethod kLoad = {Method::kRepositoryModelLoad, Access::kControl};
constexpr SmallMethod kUnload = {Method::kRepositoryModelUnload,
                                 Access::kControl};

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
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::ServerLiveRequest,
                    inference::ServerLiveResponse>(
      services_, kServerProbe, *context, *request, response,
      [](const inference::ServerLiveRequest& /*asked*/,
         inference::ServerLiveResponse* answer) {
        answer->set_live(true);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerReady(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::ServerReadyRequest,
                    inference::ServerReadyResponse>(
      services_, kServerProbe, *context, *request, response,
      [this](const inference::ServerReadyRequest& /*asked*/,
             inference::ServerReadyResponse* answer) {
        answer->set_ready(services_.serving());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelReady(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::ModelReadyRequest,
                    inference::ModelReadyResponse>(
      services_, kModelProbe, *context, *request, response,
      [this](const inference::ModelReadyRequest& asked,
             inference::ModelReadyResponse* answer) {
        answer->set_ready(
            FindInferTarget(services_.registry(), asked.name(), asked.version())
                .ok());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ServerMetadata(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::ServerMetadataRequest,
                    inference::ServerMetadataResponse>(
      services_, kModelProbe, *context, *request, response,
      [](const inference::ServerMetadataRequest& /*asked*/,
         inference::ServerMetadataResponse* answer) {
        answer->set_name("moe-server");
        answer->set_version(kVersion);
        for (const char* name :
             {"model_configuration", "model_repository", "statistics"}) {
          answer->add_extensions(name);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelMetadata(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::ModelMetadataRequest,
                    inference::ModelMetadataResponse>(
      services_, {Method::kModelMetadata}, *context, *request, response,
      [this](const inference::ModelMetadataRequest& asked,
             inference::ModelMetadataResponse* answer) {
        const auto target = FindInferTarget(services_.registry(), asked.name(),
                                            asked.version());
        if (target.ok()) {
          DescribeMetadata(*target, asked.name(), services_.limits(), answer);
        }
        return target.status();
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelConfig(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::ModelConfigRequest,
                    inference::ModelConfigResponse>(
      services_, {Method::kModelConfig}, *context, *request, response,
      [this](const inference::ModelConfigRequest& asked,
             inference::ModelConfigResponse* answer) {
        const auto target = FindInferTarget(services_.registry(), asked.name(),
                                            asked.version());
        if (target.ok()) {
          DescribeConfig(*target, asked.name(), services_.limits(),
                         answer->mutable_config());
        }
        return target.status();
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::ModelStatistics(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::ModelStatisticsRequest,
                    inference::ModelStatisticsResponse>(
      services_, {Method::kModelStatistics}, *context, *request, response,
      [this](const inference::ModelStatisticsRequest& asked,
             inference::ModelStatisticsResponse* answer) {
        if (asked.name().empty()) {
          for (auto& model : services_.registry().List()) {
            const std::string name = model->name;
            DescribeStatistics(
                {.served = std::move(model), .layer = std::nullopt}, name,
                answer->add_model_stats());
          }
          return absl::OkStatus();
        }
        const auto target = FindInferTarget(services_.registry(), asked.name(),
                                            asked.version());
        if (target.ok()) {
          DescribeStatistics(*target, asked.name(), answer->add_model_stats());
        }
        return target.status();
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryIndex(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<inference::RepositoryIndexRequest,
                    inference::RepositoryIndexResponse>(
      services_, {Method::kRepositoryIndex}, *context, *request, response,
      [this](const inference::RepositoryIndexRequest& asked,
             inference::RepositoryIndexResponse* answer) {
        for (const ModelStatus& model : models_.List()) {
          const bool ready = model.state == ModelStatus::State::kReady;
          if (asked.ready() && !ready) continue;
          auto& entry = *answer->add_models();
          entry.set_name(model.name);
          if (ready) entry.set_version(std::string(kInferVersion));
          entry.set_state(StateName(model.state));
          entry.set_reason(model.reason);
        }
        return CheckRepository(asked.repository_name());
      });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryModelLoad(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  SmallCall* const call = SmallCall::Make(kLoad, services_.metrics(), response);
  inference::RepositoryModelLoadRequest asked;
  absl::Status status =
      ReadSmall(services_, kLoad.access, *context, *request, &asked);
  if (status.ok()) status = CheckRepository(asked.repository_name());
  if (status.ok() && !asked.parameters().empty()) {
    // They would configure a model; here its folder does.
    status = absl::UnimplementedError("parameters: want none");
  }
  const auto respond = [call](const absl::Status& done) {
    call->Respond(done, Serialize(inference::RepositoryModelLoadResponse()));
  };
  if (status.ok()) {
    models_.Load(asked.model_name(), respond);
  } else {
    respond(status);
  }
  return call;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::RepositoryModelUnload(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  SmallCall* const call =
      SmallCall::Make(kUnload, services_.metrics(), response);
  inference::RepositoryModelUnloadRequest asked;
  absl::Status status =
      ReadSmall(services_, kUnload.access, *context, *request, &asked);
  if (status.ok()) status = CheckRepository(asked.repository_name());
  const auto respond = [call](const absl::Status& done) {
    call->Respond(done, Serialize(inference::RepositoryModelUnloadResponse()));
  };
  if (status.ok()) {
    models_.Unload(asked.model_name(), respond);
  } else {
    respond(status);
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
