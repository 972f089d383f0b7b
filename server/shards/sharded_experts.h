// The experts of a layer of which some or all are on shards: the side of the
// front.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "experts/expert_shard.h"
#include "server/shards/shard_fleet.h"
#include "server/shards/spread_layer.h"

namespace moe {

// Each batch becomes one message to each shard that has any of its experts,
// with every row once; all shards work at the same time, and the front on its
// own experts meanwhile. A call that fails is made again at another replica,
// one that takes unusually long is made twice. Experts whose shard has not
// answered in the end have failed: UNAVAILABLE, RESOURCE_EXHAUSTED or
// DEADLINE_EXCEEDED.
//
// Thread-safety: as ExpertShard. Batches that run at the same time have calls
// of their own, all of them over the connections of the fleet.
class ShardedExperts final : public ExpertShard {
 public:
  // local: the experts in this process; null if there are none. `fleet` must
  // outlive this object.
  ShardedExperts(SpreadLayer layer, std::unique_ptr<ExpertShard> local,
                 ShardFleet* fleet);
  ~ShardedExperts() override;

  const ExpertSpec& spec() const override { return layer_.expert; }
  int64_t num_experts() const override { return layer_.num_experts(); }
  WeightsBytes weights() const override {
    return local_ == nullptr ? WeightsBytes{} : local_->weights();
  }

  absl::Status Forward(const ExpertBatch& batch, ExpertWorkspace& workspace,
                       Matrix out, ExpertFailures& failures) const override;

 private:
  // Where the experts are while one set of shards is in use.
  struct Homes {
    std::shared_ptr<const ShardSet> shards;
    // [num_experts] the shards that have an expert; none: it is local.
    std::vector<absl::InlinedVector<int, 2>> of_expert;
  };
  // A batch on its way through the shards, and the memory that it takes from
  // its workspace.
  class Run;
  struct Memory;

  // Those of the shards that the fleet uses now.
  std::shared_ptr<const Homes> CurrentHomes() const;

  const SpreadLayer layer_;
  const std::unique_ptr<const ExpertShard> local_;
  ShardFleet& fleet_;

  // Held for a moment: the homes are worked out once for each set of shards.
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const Homes> homes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
