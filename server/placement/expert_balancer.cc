#include "server/placement/expert_balancer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "server/common/refuse.h"

namespace moe {
namespace {

// Something to be put into a bin: a group of experts, or a copy of one.
struct Item {
  double load;
  int id;  // no bin takes two of the same
};

struct Bin {
  double load = 0;
  std::vector<Item> items;

  bool Has(int id) const {
    return std::any_of(items.begin(), items.end(),
                       [id](const Item& item) { return item.id == id; });
  }
  void Add(const Item& item) {
    load += item.load;
    items.push_back(item);
  }
};

// Puts `item` where it may go by letting it take the place of another in a full
// bin, which moves to a bin with room. Of all such changes the one that leaves
// the larger of both loads smallest.
//
// There is one: a bin with room has fewer items than a full bin without this
// item, so it lacks one of those.
void AddByExchange(std::vector<Bin>& bins, size_t room, const Item& item) {
  Bin* to = nullptr;
  Bin* from = nullptr;
  size_t moved = 0;
  double best = 0;
  for (Bin& open : bins) {
    if (open.items.size() == room) continue;
    for (Bin& full : bins) {
      if (full.items.size() < room || full.Has(item.id)) continue;
      for (size_t i = 0; i < full.items.size(); ++i) {
        const Item& other = full.items[i];
        if (open.Has(other.id)) continue;
        const double larger = std::max(open.load + other.load,
                                       full.load - other.load + item.load);
        if (from != nullptr && larger >= best) continue;
        to = &open;
        from = &full;
        moved = i;
        best = larger;
      }
    }
  }
  MOE_CHECK(from != nullptr);
  const Item other = from->items[moved];
  to->Add(other);
  from->load += item.load - other.load;
  from->items[moved] = item;
}

// Puts the same number of items into each bin, largest load first, each into
// the bin with the least load that has room and not that item.
// Requires: num_bins divides the number of items; no id is there more than
// num_bins times.
std::vector<Bin> Pack(std::vector<Item> items, int num_bins) {
  std::vector<Bin> bins(static_cast<size_t>(num_bins));
  const size_t room = items.size() / bins.size();
  std::stable_sort(
      items.begin(), items.end(),
      [](const Item& a, const Item& b) { return a.load > b.load; });
  for (const Item& item : items) {
    Bin* least = nullptr;
    for (Bin& bin : bins) {
      if (bin.items.size() < room && !bin.Has(item.id) &&
          (least == nullptr || bin.load < least->load)) {
        least = &bin;
      }
    }
    if (least != nullptr) {
      least->Add(item);
    } else {
      AddByExchange(bins, room, item);
    }
  }
  return bins;
}

// One copy of each expert, then more of those with the most load per copy, at
// most `max_copies` of each, until there are `num_copies`.
std::vector<Item> Replicate(absl::Span<const double> loads,
                            absl::Span<const int> experts, size_t num_copies,
                            int max_copies) {
  std::vector<int> copies_of(experts.size(), 1);
  std::vector<size_t> made(experts.size());  // indices of `experts`
  std::iota(made.begin(), made.end(), size_t{0});
  const auto per_copy = [&](size_t i) {
    return loads[static_cast<size_t>(experts[i])] / copies_of[i];
  };
  while (made.size() < num_copies) {
    size_t next = experts.size();
    for (size_t i = 0; i < experts.size(); ++i) {
      if (copies_of[i] == max_copies) continue;
      if (next == experts.size() || per_copy(i) > per_copy(next) ||
          (per_copy(i) == per_copy(next) && copies_of[i] < copies_of[next])) {
        next = i;
      }
    }
    MOE_CHECK(next < experts.size());
    ++copies_of[next];
    made.push_back(next);
  }
  std::vector<Item> copies;
  copies.reserve(made.size());
  for (const size_t i : made) {
    copies.push_back({.load = per_copy(i), .id = experts[i]});
  }
  return copies;
}

absl::Status Check(absl::Span<const double> loads,
                   const ShardTopology& topology, int num_nodes) {
  const auto num_experts = static_cast<int64_t>(loads.size());
  const int64_t num_slots =
      int64_t{topology.num_shards} * topology.slots_per_shard;
  if (num_slots < num_experts) {
    return Refuse("slots: want at least ", num_experts,
                  ", one for each expert; got ", topology.num_shards,
                  " shards with ", topology.slots_per_shard, " each");
  }
  if (topology.slots_per_shard > num_experts / num_nodes) {
    return Refuse("slots_per_shard: want at most ", num_experts / num_nodes,
                  ", the experts of a node; got ", topology.slots_per_shard);
  }
  for (size_t expert = 0; expert < loads.size(); ++expert) {
    if (!std::isfinite(loads[expert]) || loads[expert] < 0) {
      return Refuse("load of expert ", expert, ": want 0 or more, got ",
                    loads[expert]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExpertPlan> BalanceExperts(absl::Span<const double> loads,
                                          const ShardTopology& topology) {
  const auto num_experts = static_cast<int>(loads.size());
  if (topology.num_shards < 1 || topology.slots_per_shard < 1 ||
      topology.num_nodes < 1 || topology.num_groups < 1 || num_experts < 1) {
    return Refuse(
        "shards, slots_per_shard, nodes, groups, experts: want 1 or "
        "more of each, got ",
        topology.num_shards, ", ", topology.slots_per_shard, ", ",
        topology.num_nodes, ", ", topology.num_groups, ", ", num_experts);
  }
  if (topology.num_shards % topology.num_nodes != 0) {
    return Refuse("shards: want a multiple of the ", topology.num_nodes,
                  " nodes, got ", topology.num_shards);
  }
  if (num_experts % topology.num_groups != 0) {
    return Refuse("experts: want a multiple of the ", topology.num_groups,
                  " groups, got ", num_experts);
  }
  const bool by_node = topology.num_groups % topology.num_nodes == 0;
  const int num_nodes = by_node ? topology.num_nodes : 1;
  const int num_groups = by_node ? topology.num_groups : 1;
  MOE_RETURN_IF_ERROR(Check(loads, topology, num_nodes));

  const int group_size = num_experts / num_groups;
  std::vector<Item> groups;
  for (int group = 0; group < num_groups; ++group) {
    const auto size = static_cast<size_t>(group_size);
    const auto of_group =
        loads.subspan(static_cast<size_t>(group) * size, size);
    groups.push_back(
        {.load = std::accumulate(of_group.begin(), of_group.end(), 0.0),
         .id = group});
  }
  const int shards_per_node = topology.num_shards / num_nodes;
  const auto slots_per_node = static_cast<size_t>(shards_per_node) *
                              static_cast<size_t>(topology.slots_per_shard);
  ExpertPlan plan;
  for (const Bin& node : Pack(std::move(groups), num_nodes)) {
    std::vector<int> experts;
    for (const Item& group : node.items) {
      for (int i = 0; i < group_size; ++i) {
        experts.push_back(group.id * group_size + i);
      }
    }
    for (const Bin& shard :
         Pack(Replicate(loads, experts, slots_per_node, shards_per_node),
              shards_per_node)) {
      std::vector<int32_t>& held = plan.emplace_back();
      for (const Item& copy : shard.items) held.push_back(copy.id);
    }
  }
  return plan;
}

std::vector<double> ShardLoads(absl::Span<const double> loads,
                               const ExpertPlan& plan) {
  std::vector<int> copies(loads.size(), 0);
  for (const std::vector<int32_t>& shard : plan) {
    for (const int32_t expert : shard) ++copies[static_cast<size_t>(expert)];
  }
  std::vector<double> shard_loads;
  for (const std::vector<int32_t>& shard : plan) {
    double load = 0;
    for (const int32_t expert : shard) {
      load += loads[static_cast<size_t>(expert)] /
              copies[static_cast<size_t>(expert)];
    }
    shard_loads.push_back(load);
  }
  return shard_loads;
}

double Balancedness(absl::Span<const double> shard_loads) {
  const double largest =
      *std::max_element(shard_loads.begin(), shard_loads.end());
  if (largest == 0) return 1;
  return std::accumulate(shard_loads.begin(), shard_loads.end(), 0.0) /
         static_cast<double>(shard_loads.size()) / largest;
}

}  // namespace moe
