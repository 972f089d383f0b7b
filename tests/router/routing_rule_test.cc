#include "router/routing_rule.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::Eq;

RoutingRule Good() {
  RoutingRule rule;
  rule.num_experts = 8;
  rule.top_k = 2;
  return rule;
}

TEST(RoutingRuleTest, TakesTheLimitsThemselves) {
  RoutingRule rule = Good();
  MOE_EXPECT_OK(rule.Validate());
  rule.num_experts = kMaxExperts;
  rule.top_k = kMaxTopK;
  MOE_EXPECT_OK(rule.Validate());
  rule.num_groups = rule.num_experts;  // of one expert each
  rule.top_groups = rule.top_k;
  MOE_EXPECT_OK(rule.Validate());
  rule = Good();
  rule.num_experts = 1;
  rule.top_k = 1;
  MOE_EXPECT_OK(rule.Validate());
}

TEST(RoutingRuleTest, IdentityExpertsComeOnTop) {
  RoutingRule rule = Good();
  rule.num_identity_experts = 3;
  MOE_EXPECT_OK(rule.Validate());
  EXPECT_EQ(rule.num_ffn_experts(), 5);
}

struct Refusal {
  std::string name;
  std::function<void(RoutingRule&)> spoil;
  std::string message;
};

class RoutingRuleRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RoutingRuleRefusalTest, NamesFieldWantedAndGot) {
  RoutingRule rule = Good();
  GetParam().spoil(rule);
  EXPECT_THAT(rule.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        Eq(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, RoutingRuleRefusalTest,
    ::testing::Values(
        Refusal{"NoExperts", [](RoutingRule& r) { r.num_experts = 0; },
                "num_experts: want 1 to 1024, got 0"},
        Refusal{"TooManyExperts", [](RoutingRule& r) { r.num_experts = 1025; },
                "num_experts: want 1 to 1024, got 1025"},
        Refusal{"OnlyIdentityExperts",
                [](RoutingRule& r) { r.num_identity_experts = 8; },
                "num_identity_experts: want 0 to 7, got 8"},
        Refusal{"NoChoice", [](RoutingRule& r) { r.top_k = 0; },
                "top_k: want 1 to 8, got 0"},
        Refusal{"MoreThanThereAre", [](RoutingRule& r) { r.top_k = 9; },
                "top_k: want 1 to 8, got 9"},
        Refusal{"MoreThanSupported",
                [](RoutingRule& r) {
                  r.num_experts = 64;
                  r.top_k = 33;
                },
                "top_k: want 1 to 32, got 33"},
        Refusal{"GroupsThatDoNotDivide",
                [](RoutingRule& r) { r.num_groups = 3; },
                "num_groups: want a divisor of 8, got 3"},
        Refusal{"TooManyChosenGroups",
                [](RoutingRule& r) {
                  r.num_groups = 4;
                  r.top_groups = 5;
                },
                "top_groups: want 1 to 4, got 5"},
        Refusal{"ChosenGroupsTooSmall",
                [](RoutingRule& r) {
                  r.num_groups = 8;
                  r.top_groups = 1;
                },
                "top_k: want at most 1 (the experts in the chosen groups), got "
                "2"},
        Refusal{"NormOfZero",
                [](RoutingRule& r) {
                  r.renormalize = Renormalize::kPNorm;
                  r.renorm_p = 0.0F;
                },
                "renorm_p: want a number > 0, got 0"},
        Refusal{"ThreeBySparseMixer",
                [](RoutingRule& r) {
                  r.score = ScoreFunction::kSparseMixer;
                  r.top_k = 3;
                },
                "top_k: want 1 or 2 with the sparse mixer, got 3"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace moe
