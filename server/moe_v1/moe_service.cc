#include "server/moe_v1/moe_service.h"

#include "server/moe_v1/moe_request.h"
#include "server/rpc/small_call.h"
#include "server/rpc/stream_call.h"
#include "server/rpc/unary_call.h"

namespace moe {

grpc::ServerUnaryReactor* MoeServiceImpl::Forward(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RunOnEngine(&services_, kForward, context, *request, response);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
MoeServiceImpl::ForwardStream(grpc::CallbackServerContext* context) {
  return RunStream(&services_, kForwardStream, context);
}

grpc::ServerUnaryReactor* MoeServiceImpl::Route(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RunOnEngine(&services_, kRoute, context, *request, response);
}

grpc::ServerUnaryReactor* MoeServiceImpl::ListModels(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<v1::ListModelsRequest, v1::ListModelsResponse>(
      services_, {Method::kListModels}, *context, *request, response,
      [this](const v1::ListModelsRequest& /*asked*/,
             v1::ListModelsResponse* answer) {
        for (const auto& model : services_.registry().List()) {
          Describe(*model, *answer->add_models());
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* MoeServiceImpl::GetModel(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<v1::GetModelRequest, v1::ModelInfo>(
      services_, {Method::kGetModel}, *context, *request, response,
      [this](const v1::GetModelRequest& asked, v1::ModelInfo* answer) {
        const auto model = services_.registry().Find(asked.model());
        if (model.ok()) Describe(**model, *answer);
        return model.status();
      });
}

void MoeServiceImpl::Describe(const ServedModel& served,
                              v1::ModelInfo& info) const {
  const Model& model = *served.model;
  info.set_name(served.name);
  info.set_family(model.spec().family);
  info.set_d_model(model.spec().d_model);
  info.set_weights_bytes(model.weights_bytes());
  info.set_weight_format(served.weight_format);
  info.set_max_message_bytes(services_.limits().max_message_bytes);
  info.set_max_request_tokens(services_.limits().max_request_tokens);
  for (const LayerSpec& layer : model.spec().layers) {
    v1::LayerInfo& out = *info.add_layers();
    out.set_layer(layer.index);
    out.set_dense(!layer.rule.has_value());
    out.set_d_model(layer.d_model);
    out.set_d_ff(layer.experts.expert.d_ff);
    if (layer.rule.has_value()) {
      out.set_num_experts(layer.rule->num_experts);
      out.set_top_k(layer.rule->top_k);
    }
    if (layer.shared_expert.has_value()) {
      out.set_shared_d_ff(layer.shared_expert->expert.d_ff);
    }
    out.set_parameters(layer.parameters());
  }
  for (size_t i = 0; i < model.layers().size(); ++i) {
    info.mutable_layers(static_cast<int>(i))
        ->set_held_experts(
            static_cast<int64_t>(model.layers()[i].held_experts.size()));
  }
  for (const ShardState& shard : services_.ShardsOf(served.name)) {
    v1::ShardInfo& out = *info.add_shards();
    out.set_name(shard.name);
    out.set_up(shard.up);
  }
}

}  // namespace moe
