#include "server/shards/shard_service.h"

#include "server/common/version.h"
#include "server/rpc/small_call.h"
#include "server/rpc/unary_call.h"
#include "server/shards/shard_request.h"

namespace moe {

grpc::ServerUnaryReactor* ExpertShardServiceImpl::DescribeShard(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RespondNow<shards::DescribeShardRequest, shards::ShardDescription>(
      services_, {Method::kDescribeShard}, *context, *request, response,
      [this](const shards::DescribeShardRequest& /*asked*/,
             shards::ShardDescription* answer) {
        answer->set_version(kVersion);
        for (const auto& served : services_.registry().List()) {
          shards::ShardModel& model = *answer->add_models();
          model.set_name(served->name);
          for (const ModelLayer& held : served->model->layers()) {
            shards::ShardLayer& layer = *model.add_layers();
            layer.set_layer(held.index);
            layer.set_d_model(held.ffn->d_model());
            layer.set_num_experts(held.ffn->experts().num_experts());
            layer.mutable_experts()->Add(held.held_experts.begin(),
                                         held.held_experts.end());
            layer.mutable_fingerprints()->Add(held.fingerprints.begin(),
                                              held.fingerprints.end());
          }
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ExpertShardServiceImpl::ForwardExperts(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return RunOnEngine(&services_, kForwardExperts, context, *request, response);
}

}  // namespace moe
