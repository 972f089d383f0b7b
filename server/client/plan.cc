#include "server/client/plan.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"
#include "server/common/index_set.h"
#include "server/common/output_file.h"
#include "server/common/refuse.h"
#include "server/placement/expert_balancer.h"
#include "server/placement/placement.h"

namespace moe {
namespace {

// More than any cluster has, and little enough to write down.
constexpr int kMaxShards = 4096;

absl::Status Check(const PlanOptions& options) {
  if (options.num_shards < 1 || options.num_shards > kMaxShards) {
    return Refuse("--num_shards: want 1 to ", kMaxShards, ", got ",
                  options.num_shards);
  }
  if (options.slots_per_shard < 0) {
    return Refuse("--slots_per_shard: want 0 or more, got ",
                  options.slots_per_shard);
  }
  if (options.replicas < 0 || options.replicas > IndexSet::kMaxIndex) {
    return Refuse("--replicas: want 0 to ", IndexSet::kMaxIndex, ", got ",
                  options.replicas);
  }
  if (options.slots_per_shard > 0 && options.replicas > 0) {
    return Refuse("--slots_per_shard: want it or --replicas, got both");
  }
  if (options.num_nodes < 1 || options.num_shards % options.num_nodes != 0) {
    return Refuse("--nodes: want a divisor of --num_shards=",
                  options.num_shards, ", got ", options.num_nodes);
  }
  if (options.num_groups < 1 || options.num_groups % options.num_nodes != 0) {
    return Refuse("--groups: want a multiple of --nodes=", options.num_nodes,
                  ", got ", options.num_groups);
  }
  for (const std::string& target : options.targets) {
    if (options.num_shards > 1 && !absl::StrContains(target, "{i}")) {
      return Refuse(
          "--targets: want {i} in the place of a shard's number, got ",
          Quote(target));
    }
  }
  return absl::OkStatus();
}

// Experts in the order of their ids, each on one shard.
ExpertPlan InOrder(int num_experts, int num_shards) {
  ExpertPlan plan(static_cast<size_t>(num_shards));
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    plan[static_cast<size_t>(expert * num_shards / num_experts)].push_back(
        static_cast<int32_t>(expert));
  }
  return plan;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(absl::Span<const LayerLoads> loads,
                              const PlanOptions& options) {
  MOE_RETURN_IF_ERROR(Check(options));
  Plan plan;
  for (int i = 0; i < options.num_shards; ++i) {
    v1::Shard* shard = plan.placement.add_shards();
    shard->set_name(absl::StrCat("shard-", i));
    for (const std::string& target : options.targets) {
      shard->add_targets(
          absl::StrReplaceAll(target, {{"{i}", absl::StrCat(i)}}));
    }
  }
  for (const LayerLoads& layer : loads) {
    const auto num_experts = static_cast<int>(layer.tokens.size());
    const int wanted =
        options.slots_per_shard > 0
            ? options.slots_per_shard
            : (num_experts + options.replicas + options.num_shards - 1) /
                  options.num_shards;
    // A second copy on a shard helps nobody.
    const int slots = std::min(wanted, num_experts / options.num_nodes);
    const auto experts =
        BalanceExperts(layer.tokens, {.num_shards = options.num_shards,
                                      .slots_per_shard = slots,
                                      .num_nodes = options.num_nodes,
                                      .num_groups = options.num_groups});
    if (!experts.ok()) {
      return Refuse("layer ", layer.layer, " of ", Quote(layer.model), ": ",
                    experts.status().message());
    }
    for (int i = 0; i < options.num_shards; ++i) {
      IndexSet held;
      for (const int32_t expert : (*experts)[static_cast<size_t>(i)]) {
        held.Add({expert, expert});
      }
      v1::PlacedExperts* placed =
          plan.placement.mutable_shards(i)->add_experts();
      placed->set_model(layer.model);
      placed->set_layers(absl::StrCat(layer.layer));
      placed->set_experts(held.ToString());
    }
    plan.layers.push_back(
        {.model = layer.model,
         .layer = layer.layer,
         .num_experts = num_experts,
         .slots_per_shard = slots,
         .tokens =
             std::accumulate(layer.tokens.begin(), layer.tokens.end(), 0.0),
         .balancedness_before = Balancedness(ShardLoads(
             layer.tokens, InOrder(num_experts, options.num_shards))),
         .balancedness_after =
             Balancedness(ShardLoads(layer.tokens, *experts))});
  }
  return plan;
}

absl::Status PrintAndWritePlan(const Plan& plan,
                               const std::string& output_file) {
  const int num_shards = plan.placement.shards_size();
  for (const LayerPlan& layer : plan.layers) {
    absl::PrintF(
        "%s layer %d: %d experts, %d on each of %d shards; %.0f tokens, "
        "balancedness %.3f -> %.3f\n",
        layer.model, layer.layer, layer.num_experts, layer.slots_per_shard,
        num_shards, layer.tokens, layer.balancedness_before,
        layer.balancedness_after);
  }
  if (output_file.empty()) return absl::OkStatus();

  std::string json;
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  const auto printed =
      google::protobuf::util::MessageToJsonString(plan.placement, &json, print);
  if (!printed.ok()) return absl::InternalError(printed.ToString());
  for (const v1::Shard& shard : plan.placement.shards()) {
    if (shard.targets().empty()) {
      return Refuse(
          "--targets: want one with --output, as in "
          "dns:///moe-shard-{i}:50051; got none");
    }
  }
  const auto checked = Placement::Parse(json);
  if (!checked.ok()) {
    return Refuse("--targets: ", checked.status().message());
  }
  MOE_RETURN_IF_ERROR(WriteOutputFile("--output", output_file, {json}));
  absl::PrintF("placement of %d shards: %s\n", num_shards, output_file);
  return absl::OkStatus();
}

}  // namespace moe
