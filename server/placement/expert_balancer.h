// Which experts of a layer to hold more than once, and how to share all of them
// out between shards so that each has the same work.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace moe {

struct ShardTopology {
  int num_shards = 1;
  int slots_per_shard = 1;  // experts that a shard holds
  // Shards [n * num_shards / num_nodes, (n + 1) * num_shards / num_nodes) are
  // on node n.
  int num_nodes = 1;
  // Experts [g * num_experts / num_groups, (g + 1) * ...) are group g, as in
  // routing that is limited to groups. If num_groups is a multiple of num_nodes
  // all experts of a group are on one node; else nodes do not matter.
  int num_groups = 1;
};

// The experts of each shard, in the order in which they were given to it:
// [num_shards, slots_per_shard].
using ExpertPlan = std::vector<std::vector<int32_t>>;

// DeepSeek's expert-parallel load balancer. Three greedy steps: groups go to
// nodes, largest load first; on each node the expert with the most load per
// copy gets one more copy, until there is one for each slot; copies go to
// shards, largest load first. Groups and copies go to the node or shard that
// has the least load of those with room.
//
// Every expert is on at least one shard, and on none twice: where the greedy
// order would give a shard a copy of what it holds, another is taken, and if
// need be two copies change places. Ties go to the copy that was made first, to
// the expert that has fewer copies, then to lower indices; so a plan is a
// function of its arguments.
//
// loads:  [num_experts], any unit.
// Errors: INVALID_ARGUMENT naming what does not fit: numbers below 1, loads
// that are negative or not finite, num_shards that num_nodes does not divide,
// num_experts that num_groups does not divide, slots for fewer copies than
// experts or for more than one of each expert on each shard.
absl::StatusOr<ExpertPlan> BalanceExperts(absl::Span<const double> loads,
                                          const ShardTopology& topology);

// The load of each shard, if an expert's load is the same on all its shards.
// Requires: ids of `plan` are indices of `loads`.
std::vector<double> ShardLoads(absl::Span<const double> loads,
                               const ExpertPlan& plan);

// Mean over maximum: 1 = even; 1 for no load at all.
// Requires: at least one.
double Balancedness(absl::Span<const double> shard_loads);

}  // namespace moe
