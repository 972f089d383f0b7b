// moe-client plan: from the loads of experts to a placement on shards.
//
// Thread-safe: functions without state.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moe/v1/placement.pb.h"
#include "server/client/expert_loads.h"

namespace moe {

struct PlanOptions {
  int num_shards = 0;  // has to be given
  // Experts of a layer that a shard holds, if the layer has so many; 0: as many
  // as it takes for each expert and `replicas`, at least.
  int slots_per_shard = 0;
  int replicas = 0;  // copies of a layer's experts besides the first ones
  int num_nodes = 1;
  int num_groups = 1;  // of experts, a multiple of num_nodes
  // Targets of a shard, {i} in the place of its number.
  std::vector<std::string> targets{};
};

// What a plan does for a layer.
struct LayerPlan {
  std::string model;
  int layer = 0;
  int num_experts = 0;
  int slots_per_shard = 0;
  double tokens = 0;
  // Mean load of a shard over that of the busiest: with experts in the order of
  // their ids, each once; and as planned.
  double balancedness_before = 0;
  double balancedness_after = 0;
};

struct Plan {
  std::vector<LayerPlan> layers;  // as the loads
  v1::Placement placement;        // shards "shard-0", "shard-1", ...
};

// Errors: INVALID_ARGUMENT naming flag, wanted and got, and the layer.
absl::StatusOr<Plan> MakePlan(absl::Span<const LayerLoads> loads,
                              const PlanOptions& options);

// Prints what the plan does for each layer. Writes the placement to a file,
// unless its name is empty; what is written is what `--shards` takes.
// Errors: INVALID_ARGUMENT naming --targets; those of WriteOutputFile.
absl::Status PrintAndWritePlan(const Plan& plan,
                               const std::string& output_file);

}  // namespace moe
