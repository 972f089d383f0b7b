#include "server/health_report.h"

#include <utility>

namespace moe {

HealthReport::HealthReport(std::vector<std::string> names,
                           grpc::HealthCheckServiceInterface* service)
    : names_(std::move(names)), service_(*service) {
  absl::MutexLock lock(&mutex_);
  Report();
}

void HealthReport::SetServing(bool serving) {
  absl::MutexLock lock(&mutex_);
  serving_ = serving;
  Report();
}

void HealthReport::SetModels(absl::FunctionRef<Models()> find) {
  absl::MutexLock lock(&mutex_);
  Models models = find();
  for (const auto& [name, unused] : models_) models.try_emplace(name, false);
  models_ = std::move(models);
  Report();
}

void HealthReport::Report() {
  for (const std::string& name : names_) {
    service_.SetServingStatus(name, serving_);
  }
  for (const auto& [name, can_be_served] : models_) {
    service_.SetServingStatus(name, serving_ && can_be_served);
  }
}

}  // namespace moe
