#include "experts/partial_expert_shard.h"

#include "experts/base/check.h"

namespace moe {

PartialExpertShard::PartialExpertShard(std::unique_ptr<ExpertShard> experts,
                                       std::vector<int32_t> ids,
                                       int64_t num_experts)
    : experts_(std::move(experts)),
      ids_(std::move(ids)),
      num_experts_(num_experts),
      offsets_(ids_.size() + 1) {
  MOE_CHECK(experts_->num_experts() == static_cast<int64_t>(ids_.size()));
}

absl::Status PartialExpertShard::Forward(const ExpertBatch& batch, Matrix out) {
  // The others have no rows: leaving out their offsets moves none.
  for (size_t i = 0; i < ids_.size(); ++i) {
    offsets_[i] = batch.offsets[static_cast<size_t>(ids_[i])];
  }
  offsets_.back() = batch.offsets.back();
  ExpertBatch part = batch;
  part.offsets = offsets_;
  return experts_->Forward(part, out);
}

}  // namespace moe
