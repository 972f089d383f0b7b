#include "router/top_k.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::IsNan;
using ::testing::Lt;
using ::testing::Pointwise;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// The choices of all rows, one after the other.
Choice Choose(const RoutingRule& rule, const std::vector<float>& logits,
              const std::vector<float>& bias = {}) {
  MOE_EXPECT_OK(rule.Validate());
  const auto rows = static_cast<int64_t>(logits.size()) / rule.num_experts;
  Choice choice;
  choice.ids.assign(static_cast<size_t>(rows * rule.top_k), -7);
  choice.weights.assign(choice.ids.size(), -7.0F);
  TopK(rule, bias, ConstMatrix(logits.data(), rows, rule.num_experts),
       MatrixView<int32_t>(choice.ids.data(), rows, rule.top_k),
       Matrix(choice.weights.data(), rows, rule.top_k));
  return choice;
}

RoutingRule Rule(int64_t num_experts, int64_t top_k) {
  RoutingRule rule;
  rule.num_experts = num_experts;
  rule.top_k = top_k;
  return rule;
}

// ---- A slow reference: double precision, whole lists, sorted ---------------

struct Reference {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  // The smallest distance between values that the choice compared; float32 may
  // choose otherwise where it is tiny. Equal values don't count: those are
  // equal in float32, too.
  double gap = std::numeric_limits<double>::infinity();
};

// Positions 0 .. n-1 by descending value; equal ones keep their order.
std::vector<size_t> Ranking(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

void NoteGaps(const std::vector<double>& values,
              const std::vector<size_t>& order, size_t count,
              Reference& reference) {
  for (size_t i = 1; i < order.size() && i <= count; ++i) {
    const double distance = values[order[i - 1]] - values[order[i]];
    if (distance > 0) reference.gap = std::min(reference.gap, distance);
  }
}

std::vector<double> SoftmaxOf(const std::vector<double>& z) {
  const double largest = *std::max_element(z.begin(), z.end());
  std::vector<double> p;
  double sum = 0;
  for (const double value : z) sum += std::exp(value - largest);
  for (const double value : z) p.push_back(std::exp(value - largest) / sum);
  return p;
}

double SigmoidOf(double z) { return 1 / (1 + std::exp(-z)); }

std::vector<double> Scores(ScoreFunction function,
                           const std::vector<double>& z) {
  std::vector<double> scores = z;
  switch (function) {
    case ScoreFunction::kSoftmax:
      return SoftmaxOf(z);
    case ScoreFunction::kSigmoid:
      for (double& s : scores) s = SigmoidOf(s);
      return scores;
    case ScoreFunction::kSqrtSoftplus:
      for (double& s : scores) s = std::sqrt(std::log1p(std::exp(s)));
      return scores;
    default:
      return scores;
  }
}

// Experts that are in one of the best groups.
std::vector<bool> InBestGroups(const RoutingRule& rule,
                               const std::vector<double>& selection,
                               Reference& reference) {
  const size_t size = selection.size() / static_cast<size_t>(rule.num_groups);
  std::vector<double> values;
  for (size_t first = 0; first < selection.size(); first += size) {
    std::vector<double> group(
        selection.begin() + static_cast<int64_t>(first),
        selection.begin() + static_cast<int64_t>(first + size));
    std::sort(group.rbegin(), group.rend());
    values.push_back(rule.group_score == GroupScore::kMax || size == 1
                         ? group[0]
                         : group[0] + group[1]);
  }
  const std::vector<size_t> order = Ranking(values);
  NoteGaps(values, order, static_cast<size_t>(rule.top_groups), reference);
  std::vector<bool> in(selection.size(), false);
  for (size_t g = 0; g < static_cast<size_t>(rule.top_groups); ++g) {
    std::fill_n(in.begin() + static_cast<int64_t>(order[g] * size), size, true);
  }
  return in;
}

void Renormalized(const RoutingRule& rule, std::vector<double>& w) {
  if (rule.renormalize == Renormalize::kNone) return;
  double norm = 0;
  if (rule.renormalize == Renormalize::kSum) {
    for (const double v : w) norm += v;
    norm = std::max<double>(norm + rule.renorm_epsilon, rule.renorm_min);
  } else {
    for (const double v : w) norm += std::pow(std::fabs(v), rule.renorm_p);
    norm = std::pow(norm, 1.0 / rule.renorm_p);
  }
  for (double& v : w) v /= norm;
}

Reference Route(const RoutingRule& rule, const std::vector<float>& bias,
                const std::vector<float>& logits) {
  const std::vector<double> z(logits.begin(), logits.end());
  const std::vector<double> scores = Scores(rule.score, z);
  std::vector<double> selection = scores;
  for (size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
  Reference reference;
  if (rule.num_groups > 1) {
    const std::vector<bool> in = InBestGroups(rule, selection, reference);
    for (size_t e = 0; e < selection.size(); ++e) {
      if (!in[e]) selection[e] = -std::numeric_limits<double>::infinity();
    }
  }
  const std::vector<size_t> order = Ranking(selection);
  const auto k = static_cast<size_t>(rule.top_k);
  NoteGaps(selection, order, k, reference);
  std::vector<double> chosen;
  for (size_t j = 0; j < k; ++j) {
    reference.ids.push_back(static_cast<int32_t>(order[j]));
    reference.weights.push_back(scores[order[j]]);
    chosen.push_back(z[order[j]]);
  }
  if (rule.weight == WeightSource::kSoftmaxOfChosen) {
    reference.weights = SoftmaxOf(chosen);
  } else if (rule.weight == WeightSource::kSigmoidOfChosen) {
    for (size_t j = 0; j < k; ++j) reference.weights[j] = SigmoidOf(chosen[j]);
  }
  Renormalized(rule, reference.weights);
  for (double& w : reference.weights) w *= rule.scale;
  return reference;
}

// ---- Random rules against the reference ------------------------------------

class Random {
 public:
  explicit Random(uint32_t seed) : generator_(seed) {}
  int64_t Int(int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(generator_);
  }
  float Float(float limit) {
    return std::uniform_real_distribution<float>(-limit, limit)(generator_);
  }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937 generator_;
};

RoutingRule RandomRule(Random& random) {
  RoutingRule rule;
  rule.num_experts = random.Int(0, 2) == 0
                         ? random.Int(1, 17)
                         : random.OneOf<int64_t>({32, 40, 60, 128, 160, 256,
                                                  384, 512, 768, 1024});
  const int64_t most = std::min(rule.num_experts, kMaxTopK);
  rule.top_k = random.Int(0, 3) == 0 ? most : random.Int(1, most);
  rule.score =
      random.OneOf({ScoreFunction::kLogits, ScoreFunction::kSoftmax,
                    ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus});
  rule.weight = random.OneOf({WeightSource::kScore, WeightSource::kScore,
                              WeightSource::kSoftmaxOfChosen,
                              WeightSource::kSigmoidOfChosen});
  if (rule.score != ScoreFunction::kLogits ||
      rule.weight != WeightSource::kScore) {
    // Raw logits may sum to about zero: no rule divides by that.
    rule.renormalize = random.OneOf(
        {Renormalize::kNone, Renormalize::kSum, Renormalize::kPNorm});
  }
  rule.renorm_epsilon = random.OneOf({0.0F, 1e-20F, 1e-6F});
  rule.renorm_min = random.OneOf({0.0F, 1e-12F, 0.5F});
  rule.renorm_p = random.OneOf({1.0F, 2.0F, 3.5F});
  rule.scale = random.OneOf({1.0F, 2.5F, 16.0F});
  rule.group_score = random.OneOf({GroupScore::kMax, GroupScore::kSumOfTopTwo});
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= rule.num_experts; ++d) {
    if (rule.num_experts % d == 0) divisors.push_back(d);
  }
  rule.num_groups = divisors[static_cast<size_t>(
      random.Int(0, static_cast<int64_t>(divisors.size()) - 1))];
  const int64_t group = rule.num_experts / rule.num_groups;
  rule.top_groups =
      random.Int((rule.top_k + group - 1) / group, rule.num_groups);
  return rule;
}

std::vector<float> RandomBias(const RoutingRule& rule, Random& random) {
  std::vector<float> bias;
  switch (random.Int(0, 3)) {
    case 0:
      return bias;
    case 1:  // All selections are negative then.
      bias.assign(static_cast<size_t>(rule.num_experts), -2.0F);
      return bias;
    default:
      for (int64_t e = 0; e < rule.num_experts; ++e) {
        bias.push_back(random.Float(1.0F));
      }
      return bias;
  }
}

// Multiples of 1/16: equal logits are common.
std::vector<float> RandomLogits(const RoutingRule& rule, Random& random) {
  std::vector<float> logits;
  for (int64_t e = 0; e < rule.num_experts; ++e) {
    logits.push_back(std::round(random.Float(6.0F) * 16.0F) / 16.0F);
  }
  return logits;
}

TEST(TopKTest, AgreesWithTheReferenceForRandomRules) {
  int compared = 0;
  constexpr int kRules = 3000;
  for (uint32_t seed = 1; seed <= kRules; ++seed) {
    Random random(seed);
    const RoutingRule rule = RandomRule(random);
    const std::vector<float> bias = RandomBias(rule, random);
    const std::vector<float> logits = RandomLogits(rule, random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", rule.num_experts,
                              " experts, top ", rule.top_k));
    const Choice got = Choose(rule, logits, bias);
    const Reference want = Route(rule, bias, logits);
    // Whatever is chosen, ids are distinct and valid.
    const std::set<int32_t> distinct(got.ids.begin(), got.ids.end());
    ASSERT_EQ(distinct.size(), got.ids.size());
    ASSERT_GE(*distinct.begin(), 0);
    ASSERT_LT(*distinct.rbegin(), rule.num_experts);
    // Closer values may change places in float32: 8 units in the last place of
    // a selection of up to 8.
    if (want.gap < 8e-6) continue;
    ++compared;
    ASSERT_EQ(got.ids, want.ids);
    for (size_t j = 0; j < want.weights.size(); ++j) {
      // A sum over all experts, and a few operations more.
      const double bound = (static_cast<double>(rule.num_experts) + 40) *
                           std::numeric_limits<float>::epsilon() *
                           std::fabs(want.weights[j]);
      ASSERT_NEAR(got.weights[j], want.weights[j], bound) << "choice " << j;
    }
  }
  EXPECT_GT(compared, kRules / 3);
}

TEST(TopKTest, ReportsWinnersAbove255) {
  for (const int64_t num_experts : {384, 512, 1024}) {
    std::vector<float> logits(static_cast<size_t>(num_experts));
    for (size_t e = 0; e < logits.size(); ++e) {
      logits[e] = static_cast<float>(e) / 64.0F;
    }
    const auto last = static_cast<int32_t>(num_experts - 1);
    EXPECT_THAT(Choose(Rule(num_experts, 3), logits).ids,
                ElementsAre(last, last - 1, last - 2));
  }
}

TEST(TopKTest, TiesGoToLowerExpertId) {
  RoutingRule rule = Rule(8, 3);
  EXPECT_THAT(Choose(rule, std::vector<float>(8, 0.5F)).ids,
              ElementsAre(0, 1, 2));
  EXPECT_THAT(Choose(rule, {0, 0, 1, 0, 0, 0, 1, 0}).ids, ElementsAre(2, 6, 0));
  // Between groups as between experts.
  rule.num_groups = 4;
  rule.top_groups = 2;
  EXPECT_THAT(Choose(rule, std::vector<float>(8, 0.5F)).ids,
              ElementsAre(0, 1, 2));
}

TEST(TopKTest, OneExpertGetsEverything) {
  RoutingRule rule = Rule(1, 1);
  rule.renormalize = Renormalize::kSum;
  const Choice choice = Choose(rule, {-3.0F, 0.0F, 88.0F});
  EXPECT_THAT(choice.ids, ElementsAre(0, 0, 0));
  EXPECT_THAT(choice.weights, ElementsAre(1.0F, 1.0F, 1.0F));
}

TEST(TopKTest, ChoosingAllRanksThem) {
  RoutingRule rule = Rule(4, 4);
  rule.renormalize = Renormalize::kSum;
  const Choice choice = Choose(rule, {0.0F, 2.0F, 1.0F, 3.0F});
  EXPECT_THAT(choice.ids, ElementsAre(3, 1, 2, 0));
  EXPECT_FLOAT_EQ(
      std::accumulate(choice.weights.begin(), choice.weights.end(), 0.0F),
      1.0F);
}

TEST(TopKTest, AllTokensMayGoToOneExpert) {
  constexpr int kTokens = 33;
  std::vector<float> logits;
  for (int t = 0; t < kTokens; ++t) {
    logits.insert(logits.end(), {0.0F, 1.0F, 9.0F, 2.0F});
  }
  EXPECT_THAT(Choose(Rule(4, 1), logits).ids, Each(2));
}

TEST(TopKTest, BiasChoosesButDoesNotWeigh) {
  RoutingRule rule = Rule(4, 2);
  rule.score = ScoreFunction::kSigmoid;
  const std::vector<float> logits = {3.0F, 2.0F, 1.0F, -4.0F};
  const Choice choice = Choose(rule, logits, {0.0F, 0.0F, 0.0F, 100.0F});
  EXPECT_THAT(choice.ids, ElementsAre(3, 0));
  EXPECT_THAT(choice.weights, ElementsAre(FloatEq(1 / (1 + std::exp(4.0F))),
                                          FloatEq(1 / (1 + std::exp(-3.0F)))));
}

TEST(TopKTest, NegativeSelectionsDoNotLetMaskedGroupsIn) {
  RoutingRule rule = Rule(6, 2);
  rule.score = ScoreFunction::kSigmoid;
  rule.num_groups = 3;
  rule.top_groups = 1;
  rule.group_score = GroupScore::kSumOfTopTwo;
  // With a mask of zero instead of -inf, experts 0 and 1 would win.
  EXPECT_THAT(
      Choose(rule, {0, 0, 1, 1, 0, 0}, std::vector<float>(6, -2.0F)).ids,
      ElementsAre(2, 3));
}

TEST(TopKTest, GroupsCountByTheirBestOrTheirTwoBest) {
  RoutingRule rule = Rule(6, 1);
  rule.score = ScoreFunction::kSigmoid;
  rule.num_groups = 2;
  rule.top_groups = 1;
  // Group 0 has the best expert, group 1 the best pair; the third of group 0
  // counts for nothing.
  const std::vector<float> logits = {3.0F, -2.0F, -2.0F, 2.0F, 2.0F, -9.0F};
  rule.group_score = GroupScore::kMax;
  EXPECT_THAT(Choose(rule, logits).ids, ElementsAre(0));
  rule.group_score = GroupScore::kSumOfTopTwo;
  EXPECT_THAT(Choose(rule, logits).ids, ElementsAre(3));
}

TEST(TopKTest, ARowWithNaNHasValidIdsAndWeightsNaN) {
  for (const ScoreFunction score :
       {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
        ScoreFunction::kLogits, ScoreFunction::kSparseMixer}) {
    for (const int64_t num_experts : {2, 128, 129}) {
      RoutingRule rule = Rule(num_experts, 2);
      rule.score = score;
      rule.renormalize = Renormalize::kSum;
      const std::vector<float> all(static_cast<size_t>(num_experts), kNaN);
      const Choice choice = Choose(rule, all);
      EXPECT_THAT(choice.ids, ElementsAre(0, 1));
      EXPECT_THAT(choice.weights, Each(IsNan()));
      // One of many: never chosen before a number.
      std::vector<float> one(static_cast<size_t>(num_experts), 0.0F);
      one[0] = kNaN;
      const Choice others = Choose(rule, one);
      EXPECT_EQ(std::set<int32_t>(others.ids.begin(), others.ids.end()).size(),
                2U);
      EXPECT_THAT(others.ids, Each(Lt(num_experts)));
    }
  }
}

TEST(TopKTest, InfiniteLogitsHaveValidIds) {
  for (const float value : {kInfinity, -kInfinity}) {
    for (const ScoreFunction score :
         {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
          ScoreFunction::kSqrtSoftplus, ScoreFunction::kSparseMixer}) {
      RoutingRule rule = Rule(5, 2);
      rule.score = score;
      for (const size_t infinite : {size_t{1}, size_t{5}}) {
        std::vector<float> logits(5, 0.0F);
        std::fill_n(logits.begin(), infinite, value);
        const Choice choice = Choose(rule, logits);
        EXPECT_NE(choice.ids[0], choice.ids[1]);
        EXPECT_THAT(choice.ids,
                    Each(::testing::AllOf(::testing::Ge(0), Lt(5))));
      }
    }
  }
}

TEST(TopKTest, RowsDoNotSeeEachOther) {
  Random random(7);
  RoutingRule rule = Rule(40, 8);
  rule.renormalize = Renormalize::kSum;
  std::vector<float> logits;
  for (int row = 0; row < 5; ++row) {
    const auto next = RandomLogits(rule, random);
    logits.insert(logits.end(), next.begin(), next.end());
  }
  std::fill_n(logits.begin() + 40, 40, kNaN);
  const Choice together = Choose(rule, logits);
  for (int64_t row = 0; row < 5; ++row) {
    if (row == 1) continue;
    const Choice alone = Choose(
        rule, {logits.begin() + row * 40, logits.begin() + row * 40 + 40});
    EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(),
                           together.ids.begin() + row * 8));
    EXPECT_TRUE(std::equal(alone.weights.begin(), alone.weights.end(),
                           together.weights.begin() + row * 8));
  }
}

TEST(TopKTest, VanishingScoresAreNotDividedByTheirSum) {
  RoutingRule rule = Rule(3, 2);
  rule.score = ScoreFunction::kSigmoid;
  rule.renormalize = Renormalize::kSum;
  for (const float epsilon : {0.0F, 1e-20F}) {
    rule.renorm_epsilon = epsilon;
    EXPECT_THAT(Choose(rule, {-200.0F, -200.0F, -200.0F}).weights,
                ElementsAre(0.0F, 0.0F));
  }
  rule.renormalize = Renormalize::kPNorm;
  rule.renorm_p = 2.0F;
  EXPECT_THAT(Choose(rule, {-200.0F, -200.0F, -200.0F}).weights,
              ElementsAre(0.0F, 0.0F));
}

TEST(TopKTest, FarApartLogitsDoNotOverflow) {
  const Choice choice = Choose(Rule(3, 2), {-3e38F, 3e38F, 0.0F});
  EXPECT_THAT(choice.ids, ElementsAre(1, 0));
  EXPECT_THAT(choice.weights, ElementsAre(1.0F, 0.0F));
}

TEST(TopKTest, NoRowsAreFine) {
  EXPECT_TRUE(Choose(Rule(4, 2), {}).ids.empty());
}

// ---- The sparse mixer -------------------------------------------------------

RoutingRule SparseMixer(int64_t num_experts, float epsilon) {
  RoutingRule rule = Rule(num_experts, 2);
  rule.score = ScoreFunction::kSparseMixer;
  rule.sparse_mixer_epsilon = epsilon;
  return rule;
}

TEST(TopKTest, SparseMixerWeighsByTheLogitsCloseToEachPick) {
  // Kept around 4.00: those with (4 - z) / 4 <= 0.02. Around 3.95, the second
  // pick, without the first: (3.95 - z) / 3.95 <= 0.02.
  const std::vector<float> logits = {3.90F, 4.00F, 3.95F, 1.00F};
  const Choice choice = Choose(SparseMixer(4, 0.01F), logits);
  EXPECT_THAT(choice.ids, ElementsAre(1, 2));
  const double first = 1 / (1 + std::exp(3.95 - 4.00));
  const double second = 1 / (1 + std::exp(3.90 - 3.95));
  EXPECT_NEAR(choice.weights[0], first, 1e-6);
  EXPECT_NEAR(choice.weights[1], second, 1e-6);
}

TEST(TopKTest, SparseMixerKeepsZerosTogether) {
  // 0/0 counts as close: the weights are 1/E and 1/(E-1).
  const Choice choice =
      Choose(SparseMixer(8, 0.01F), std::vector<float>(8, 0.0F));
  EXPECT_THAT(choice.ids, ElementsAre(0, 1));
  EXPECT_THAT(choice.weights,
              ElementsAre(FloatEq(1.0F / 8), FloatEq(1.0F / 7)));
}

TEST(TopKTest, SparseMixerWithoutToleranceGivesWholeWeights) {
  const Choice choice = Choose(SparseMixer(3, 0.0F), {-1.0F, 2.0F, 1.0F});
  EXPECT_THAT(choice.ids, ElementsAre(1, 2));
  EXPECT_THAT(choice.weights, ElementsAre(1.0F, 1.0F));
}

}  // namespace
}  // namespace moe
