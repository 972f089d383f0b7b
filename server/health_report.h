// What the health service says: of the server, of its services and, on a front,
// of each model.

#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/health_check_service_interface.h"

namespace moe {

// Thread-safe. Changes come one after the other: nothing is SERVING once
// SetServing(false) has returned, whoever reports a model meanwhile.
class HealthReport {
 public:
  // Whether each model can be served, by its name.
  using Models = absl::btree_map<std::string, bool>;

  // names: those that stand for the whole server. All are NOT_SERVING at first.
  // The service must outlive the object.
  HealthReport(std::vector<std::string> names,
               grpc::HealthCheckServiceInterface* service);

  // Reports the server; models that can't be served stay NOT_SERVING.
  void SetServing(bool serving);
  // Reports the models, as `find` says; those that it no longer names become
  // NOT_SERVING. One call of `find` at a time; it must not call the report.
  void SetModels(absl::FunctionRef<Models()> find);

 private:
  void Report() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<std::string> names_;
  grpc::HealthCheckServiceInterface& service_;
  absl::Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  Models models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
