// grpc.health.v1.Health: who serves, for whoever asks. gRPC's own parses
// messages of any size.

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/rpc/service_context.h"

namespace moe {

using HealthServiceBase = grpc::health::v1::Health::WithRawCallbackMethod_Check<
    grpc::health::v1::Health::WithRawCallbackMethod_Watch<
        grpc::health::v1::Health::Service>>;

// Needs no token. Thread-safe.
class HealthService final : public HealthServiceBase,
                            public grpc::HealthCheckServiceInterface {
 public:
  // The context must outlive the service.
  explicit HealthService(ServiceContext* services) : services_(*services) {}

  // Whether `name` serves; its watches are told.
  void SetServingStatus(const std::string& name, bool serving) override;
  // Likewise all names that there are.
  void SetServingStatus(bool serving) override;

  // NOT_FOUND for a name that was never set, INVALID_ARGUMENT for one of more
  // than 200 bytes.
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  // SERVICE_UNKNOWN for a name that was never set, until it is; else likewise.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;

 private:
  class Watcher;

  ServiceContext& services_;
  absl::Mutex mutex_;
  absl::btree_map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_);
  // All that have not ended.
  std::map<Watcher*, std::shared_ptr<Watcher>> watchers_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
