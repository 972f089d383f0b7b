// grpc.reflection.v1alpha.ServerReflection: what the services and their
// messages are. gRPC's own asks for no token, and parses messages of any size.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/rpc/service_context.h"

namespace moe {

// The answer to one request, from what is linked into the program.
// services: full names of those that are offered
grpc::reflection::v1alpha::ServerReflectionResponse Reflect(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

using ReflectionServiceBase = grpc::reflection::v1alpha::ServerReflection::
    WithRawCallbackMethod_ServerReflectionInfo<
        grpc::reflection::v1alpha::ServerReflection::Service>;

// Thread-safe.
class ReflectionService final : public ReflectionServiceBase {
 public:
  // names: as for Reflect. The context must outlive the service.
  ReflectionService(ServiceContext* services, std::vector<std::string> names)
      : services_(*services), names_(std::move(names)) {}

  // Ends the stream at a message that is too large or none.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

 private:
  ServiceContext& services_;
  const std::vector<std::string> names_;
};

}  // namespace moe
