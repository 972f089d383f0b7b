#include "experts/partial_expert_shard.h"

#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "experts/expert_workspace.h"

namespace moe {
namespace {

// Scratch memory: the offsets of the experts that there are.
struct PartOffsets {
  std::vector<int32_t> offsets;
};

}  // namespace

PartialExpertShard::PartialExpertShard(std::unique_ptr<ExpertShard> experts,
                                       std::vector<int32_t> ids,
                                       int64_t num_experts)
    : experts_(std::move(experts)),
      ids_(std::move(ids)),
      num_experts_(num_experts) {
  MOE_CHECK(experts_->num_experts() == static_cast<int64_t>(ids_.size()));
}

absl::Status PartialExpertShard::Forward(const ExpertBatch& batch,
                                         ExpertWorkspace& workspace, Matrix out,
                                         ExpertFailures& failures) const {
  // The others have no rows: leaving out their offsets moves none.
  std::vector<int32_t>& offsets = workspace.Scratch<PartOffsets>().offsets;
  offsets.clear();
  for (const int32_t id : ids_) {
    offsets.push_back(batch.offsets[static_cast<size_t>(id)]);
  }
  offsets.push_back(batch.offsets.back());
  ExpertBatch part = batch;
  part.offsets = offsets;
  ExpertFailures of_part;
  MOE_RETURN_IF_ERROR(experts_->Forward(part, workspace, out, of_part));
  failures.Clear();
  for (const ExpertFailures::Failure& failure : of_part) {
    failures.Add(ids_[static_cast<size_t>(failure.expert)], failure.status);
  }
  return absl::OkStatus();
}

}  // namespace moe
