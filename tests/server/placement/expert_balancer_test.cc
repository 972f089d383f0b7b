#include "server/placement/expert_balancer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// What DeepSeek publishes as the example of its balancer.
TEST(BalanceExpertsTest, AgreesWithThePublishedExample) {
  const ShardTopology topology = {
      .num_shards = 8, .slots_per_shard = 2, .num_nodes = 2, .num_groups = 4};
  EXPECT_THAT(
      BalanceExperts({90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                     topology)
          .value(),
      ElementsAre(ElementsAre(5, 6), ElementsAre(5, 7), ElementsAre(8, 4),
                  ElementsAre(3, 4), ElementsAre(10, 9), ElementsAre(10, 2),
                  ElementsAre(0, 1), ElementsAre(11, 1)));
  EXPECT_THAT(
      BalanceExperts({20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27},
                     topology)
          .value(),
      ElementsAre(ElementsAre(7, 10), ElementsAre(6, 8), ElementsAre(6, 11),
                  ElementsAre(8, 9), ElementsAre(2, 4), ElementsAre(5, 1),
                  ElementsAre(5, 0), ElementsAre(3, 1)));
}

TEST(BalanceExpertsTest, NodesDoNotMatterIfGroupsDoNotFitThem) {
  const std::vector<double> loads = {90, 132, 40, 61, 104, 165};
  MOE_ASSERT_OK_AND_ASSIGN(const ExpertPlan three_groups,
                           BalanceExperts(loads, {.num_shards = 4,
                                                  .slots_per_shard = 2,
                                                  .num_nodes = 2,
                                                  .num_groups = 3}));
  MOE_ASSERT_OK_AND_ASSIGN(
      const ExpertPlan one_node,
      BalanceExperts(loads, {.num_shards = 4, .slots_per_shard = 2}));
  EXPECT_EQ(three_groups, one_node);
}

TEST(BalanceExpertsTest, TiesGoToFewerCopiesThenToLowerIds) {
  EXPECT_THAT(
      BalanceExperts({1, 1, 1, 1}, {.num_shards = 2, .slots_per_shard = 3})
          .value(),
      ElementsAre(ElementsAre(2, 0, 1), ElementsAre(3, 1, 0)));
  EXPECT_THAT(
      BalanceExperts({0, 0, 0, 0}, {.num_shards = 2, .slots_per_shard = 3})
          .value(),
      ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 0, 1)));
}

TEST(BalanceExpertsTest, OneShardHoldsAll) {
  EXPECT_THAT(BalanceExperts({3, 5, 4}, {.num_shards = 1, .slots_per_shard = 3})
                  .value(),
              ElementsAre(ElementsAre(1, 2, 0)));
}

TEST(BalanceExpertsTest, AHotExpertGoesToEveryShardAndNoFurther) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const ExpertPlan plan,
      BalanceExperts({1000, 1, 1, 1}, {.num_shards = 2, .slots_per_shard = 3}));
  for (const auto& shard : plan) {
    EXPECT_EQ(std::count(shard.begin(), shard.end(), 0), 1);
  }
}

struct Case {
  std::vector<double> loads;
  ShardTopology topology;
};

// Loads from even to very skewed; every topology that fits.
Case RandomCase(std::mt19937_64& random) {
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Case result;
  const int num_nodes = draw(1, 3);
  const int groups_per_node = draw(1, 3);
  const int num_groups = num_nodes * groups_per_node;
  const int num_experts = num_groups * draw(1, 6);
  const int per_node = num_experts / num_nodes;
  const int shards_per_node = draw(1, 5);
  const int fewest = (per_node + shards_per_node - 1) / shards_per_node;
  result.topology = {.num_shards = num_nodes * shards_per_node,
                     .slots_per_shard = draw(fewest, per_node),
                     .num_nodes = num_nodes,
                     .num_groups = num_groups};
  const double skew = draw(0, 3);
  for (int i = 0; i < num_experts; ++i) {
    result.loads.push_back(std::floor(100 * std::pow(draw(0, 10) / 5.0, skew)));
  }
  return result;
}

TEST(BalanceExpertsTest, PlansAreWhole) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    const Case c = RandomCase(random);
    const ShardTopology& topology = c.topology;
    MOE_ASSERT_OK_AND_ASSIGN(const ExpertPlan plan,
                             BalanceExperts(c.loads, topology));
    ASSERT_EQ(plan.size(), static_cast<size_t>(topology.num_shards));
    const size_t group_size =
        c.loads.size() / static_cast<size_t>(topology.num_groups);
    const size_t shards_per_node =
        plan.size() / static_cast<size_t>(topology.num_nodes);
    std::vector<std::set<size_t>> nodes_of_group(
        static_cast<size_t>(topology.num_groups));
    std::set<int32_t> everywhere;
    for (size_t shard = 0; shard < plan.size(); ++shard) {
      const std::set<int32_t> distinct(plan[shard].begin(), plan[shard].end());
      EXPECT_EQ(plan[shard].size(),
                static_cast<size_t>(topology.slots_per_shard));
      EXPECT_EQ(distinct.size(), plan[shard].size());
      everywhere.insert(distinct.begin(), distinct.end());
      for (const int32_t expert : distinct) {
        nodes_of_group[static_cast<size_t>(expert) / group_size].insert(
            shard / shards_per_node);
      }
    }
    EXPECT_EQ(everywhere.size(), c.loads.size());
    EXPECT_EQ(*everywhere.begin(), 0);
    for (const auto& nodes : nodes_of_group) EXPECT_EQ(nodes.size(), 1);

    EXPECT_EQ(BalanceExperts(c.loads, topology).value(), plan);
    // No load is lost.
    const std::vector<double> shard_loads = ShardLoads(c.loads, plan);
    const double total = std::accumulate(c.loads.begin(), c.loads.end(), 0.0);
    EXPECT_NEAR(std::accumulate(shard_loads.begin(), shard_loads.end(), 0.0),
                total, 1e-9 * total);
  }
}

double Largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

// The busiest shard has no more than the mean and one expert's load.
TEST(BalanceExpertsTest, NoShardIsFarAboveTheMean) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    Case c = RandomCase(random);
    c.topology.num_groups = 1;
    c.topology.num_nodes = 1;
    MOE_ASSERT_OK_AND_ASSIGN(const ExpertPlan plan,
                             BalanceExperts(c.loads, c.topology));
    const double mean = std::accumulate(c.loads.begin(), c.loads.end(), 0.0) /
                        c.topology.num_shards;
    EXPECT_LE(Largest(ShardLoads(c.loads, plan)),
              (mean + Largest(c.loads)) * (1 + 1e-12));
  }
}

// One expert has more to do than a shard's share: only copies help.
TEST(BalanceExpertsTest, CopiesOfHotExpertsEvenTheShards) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const int num_shards = 4 << (round % 3);
    std::vector<double> loads;
    for (int i = 0; i < 32; ++i) loads.push_back(1000 / std::pow(i + 1, 1.2));
    std::shuffle(loads.begin(), loads.end(), random);
    const auto balancedness = [&](int slots_per_shard) {
      return Balancedness(ShardLoads(
          loads, BalanceExperts(loads, {.num_shards = num_shards,
                                        .slots_per_shard = slots_per_shard})
                     .value()));
    };
    const double without = balancedness(32 / num_shards);
    const double with = balancedness(64 / num_shards);
    EXPECT_LT(without, 0.9);
    EXPECT_GT(with, without);
    EXPECT_GT(with, 0.97);
  }
}

struct BadCase {
  const char* name;
  ShardTopology topology;
  const char* message;
};

class BalanceExpertsErrorTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BalanceExpertsErrorTest, NamesWhatDoesNotFit) {
  const std::vector<double> loads(12, 1.0);
  EXPECT_THAT(BalanceExperts(loads, GetParam().topology),
              StatusIs(kInvalid, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Topologies, BalanceExpertsErrorTest,
    ::testing::Values(
        BadCase{
            "NoShards", {.num_shards = 0, .slots_per_shard = 12}, "got 0, "},
        BadCase{"TooFewSlots",
                {.num_shards = 3, .slots_per_shard = 3},
                "slots: want at least 12, one for each expert; got 3 shards "
                "with 3 each"},
        BadCase{"TooManySlots",
                {.num_shards = 3, .slots_per_shard = 13},
                "slots_per_shard: want at most 12, the experts of a node; got "
                "13"},
        BadCase{"TooManySlotsOfANode",
                {.num_shards = 4,
                 .slots_per_shard = 7,
                 .num_nodes = 2,
                 .num_groups = 2},
                "slots_per_shard: want at most 6"},
        BadCase{"ShardsAndNodes",
                {.num_shards = 3, .slots_per_shard = 4, .num_nodes = 2},
                "shards: want a multiple of the 2 nodes, got 3"},
        BadCase{"ExpertsAndGroups",
                {.num_shards = 3, .slots_per_shard = 4, .num_groups = 5},
                "experts: want a multiple of the 5 groups, got 12"}),
    [](const auto& row) { return row.param.name; });

TEST(BalanceExpertsTest, RefusesLoadsThatAreNone) {
  for (const double load :
       {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(
        BalanceExperts({1, load}, {.num_shards = 1, .slots_per_shard = 2}),
        StatusIs(kInvalid, HasSubstr("load of expert 1: want 0 or more")));
  }
  EXPECT_THAT(BalanceExperts({}, {}), StatusIs(kInvalid, HasSubstr("experts")));
}

TEST(BalancednessTest, IsMeanOverMaximum) {
  EXPECT_THAT(Balancedness({1, 1, 4}), DoubleEq(0.5));
  EXPECT_THAT(Balancedness({2, 2}), DoubleEq(1));
  EXPECT_THAT(Balancedness({0, 0}), DoubleEq(1));
}

TEST(ShardLoadsTest, SharesALoadBetweenItsCopies) {
  EXPECT_THAT(ShardLoads({6, 1, 2}, {{0, 1}, {0, 2}}), ElementsAre(4, 5));
}

}  // namespace
}  // namespace moe
