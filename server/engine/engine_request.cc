#include "server/engine/engine_request.h"

namespace moe {

absl::Status EngineRequest::CheckWanted(SteadyTime now) const {
  if (observer_.Cancelled()) {
    return absl::CancelledError("cancelled by the caller");
  }
  if (now >= deadline()) {
    return absl::DeadlineExceededError("deadline passed before the answer");
  }
  return absl::OkStatus();
}

bool EngineRequest::Fail(const absl::Status& status) {
  if (status.ok() || !status_.ok()) return false;
  status_ = status;
  failed_.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace moe
