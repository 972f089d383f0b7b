// Some of the experts of a layer, under the ids that they have in it.

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "experts/expert_shard.h"

namespace moe {

class PartialExpertShard final : public ExpertShard {
 public:
  // experts:     the experts that there are
  // ids:         [experts->num_experts()] their ids in the layer, ascending
  // num_experts: of the layer
  PartialExpertShard(std::unique_ptr<ExpertShard> experts,
                     std::vector<int32_t> ids, int64_t num_experts);

  const ExpertSpec& spec() const override { return experts_->spec(); }
  int64_t num_experts() const override { return num_experts_; }
  WeightsBytes weights() const override { return experts_->weights(); }

  // Requires: experts that there are not have no rows.
  absl::Status Forward(const ExpertBatch& batch, ExpertWorkspace& workspace,
                       Matrix out, ExpertFailures& failures) const override;

 private:
  const std::unique_ptr<const ExpertShard> experts_;
  const std::vector<int32_t> ids_;
  const int64_t num_experts_;
};

}  // namespace moe
