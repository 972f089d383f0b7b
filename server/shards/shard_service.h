// moe.shards.ExpertShardService: the side of the shard.

#pragma once

#include "moe/shards/shards.grpc.pb.h"
#include "server/rpc/service_context.h"

namespace moe {

using ExpertShardServiceBase =
    shards::ExpertShardService::WithRawCallbackMethod_DescribeShard<
        shards::ExpertShardService::WithRawCallbackMethod_ForwardExperts<
            shards::ExpertShardService::Service>>;

// Thread-safe.
class ExpertShardServiceImpl final : public ExpertShardServiceBase {
 public:
  // The context must outlive the service.
  explicit ExpertShardServiceImpl(ServiceContext* services)
      : services_(*services) {}

  // shards::DescribeShardRequest to shards::ShardDescription.
  grpc::ServerUnaryReactor* DescribeShard(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  // shards::ForwardExpertsRequest to shards::ForwardExpertsResponse.
  grpc::ServerUnaryReactor* ForwardExperts(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;

 private:
  ServiceContext& services_;
};

}  // namespace moe
