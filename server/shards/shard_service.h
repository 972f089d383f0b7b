// moe.v1.ExpertShardService: the side of the shard.

#pragma once

#include "moe/v1/shard.grpc.pb.h"
#include "server/rpc/rpc_calls.h"

namespace moe {

using ExpertShardServiceBase =
    v1::ExpertShardService::WithCallbackMethod_DescribeShard<
        v1::ExpertShardService::WithRawCallbackMethod_ForwardExperts<
            v1::ExpertShardService::Service>>;

// Thread-safe.
class ExpertShardServiceImpl final : public ExpertShardServiceBase {
 public:
  // The host must outlive the service.
  explicit ExpertShardServiceImpl(RpcHost* host) : host_(*host) {}

  grpc::ServerUnaryReactor* DescribeShard(
      grpc::CallbackServerContext* context,
      const v1::DescribeShardRequest* request,
      v1::ShardDescription* response) override;
  // v1::ForwardExpertsRequest to v1::ForwardExpertsResponse.
  grpc::ServerUnaryReactor* ForwardExperts(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;

 private:
  RpcHost& host_;
};

}  // namespace moe
