// The experts of a layer of which some or all are on shards: the side of the
// front.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "experts/base/aligned_buffer.h"
#include "experts/expert_shard.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/shards/shard_client.h"
#include "server/shards/shard_fleet.h"
#include "server/shards/shard_message.h"
#include "server/shards/spread_layer.h"

namespace moe {

// Each batch becomes one message to each shard that has any of its experts,
// with every row once; all shards work at the same time, and the front on its
// own experts meanwhile. A call that fails is made again at another replica,
// one that takes unusually long is made twice.
//
// Thread-safety: as ExpertShard.
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

  absl::Status Forward(const ExpertBatch& batch, Matrix out) override;
  absl::Status ExpertStatus(int64_t expert) const override;
  bool AllRan() const override { return failed_.empty(); }

 private:
  // What is asked of one shard for the batch that runs.
  struct Call {
    ShardClient* shard = nullptr;
    std::vector<int32_t> experts;
    int64_t rows = 0;  // assignments
    grpc::ByteBuffer request;
    SteadyTime start;
    std::vector<std::shared_ptr<ShardAttempt>> running;
    std::vector<size_t> tried;  // targets
    SteadyTime next;            // attempt, if none of those that run ends first
    bool next_is_hedge = false;
    absl::Status status;  // of the last attempt that failed
    bool done = false;
    double seconds = 0;  // once done
  };

  void FollowPlacement();
  // Decides who runs which expert.
  void Divide(const ExpertBatch& batch);
  void RunLocal(const ExpertBatch& batch, Matrix out);
  void Attempt(Call& call, size_t index);
  void TakeEnded(const std::shared_ptr<ShardAttempt>& attempt,
                 const ExpertBatch& batch, Matrix out);
  // Why what has not been answered by deadline_ is given up.
  absl::Status Late(const ExpertBatch& batch) const;
  void MakeDue(const ExpertBatch& batch);
  void GiveUp(Call& call, absl::Status status);

  const SpreadLayer layer_;
  const std::unique_ptr<ExpertShard> local_;
  ShardFleet& fleet_;

  // Follows the placement: [num_experts] the shards that have an expert; none:
  // it is local.
  std::shared_ptr<const ShardSet> shards_;
  std::vector<absl::InlinedVector<int, 2>> shards_of_;

  // Of the batch that runs.
  ShardRequestWriter writer_;
  std::vector<Call> calls_;
  std::shared_ptr<AttemptInbox> inbox_;
  SteadyTime deadline_;
  std::vector<int32_t> local_experts_;
  std::vector<int32_t> local_offsets_;
  std::vector<int32_t> local_rows_;
  std::vector<float> local_scales_;
  AlignedBuffer<float> local_outputs_;
  // Calls that failed, for ExpertStatus.
  std::vector<size_t> failed_;
};

}  // namespace moe
