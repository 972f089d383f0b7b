#include "router/ffn_layer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "experts/linear.h"
#include "experts/local_expert_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A routed layer; tests change what they are about.
ReferenceMoe RandomMoe(int64_t d_model, int64_t num_experts, int64_t top_k) {
  ReferenceMoe moe;
  moe.spec = {.d_model = d_model, .d_ff = 40, .activation = {}};
  for (int64_t e = 0; e < num_experts; ++e) {
    moe.experts.push_back(RandomExpert(moe.spec, static_cast<uint32_t>(e)));
  }
  // With hidden states on a grid the logits are exact, and the choice of
  // experts is the same in double precision.
  moe.gate = GridFloats(num_experts * d_model, 0.25F, 77);
  moe.top_k = top_k;
  moe.renormalize = true;
  return moe;
}

void AddIdentityExperts(ReferenceMoe& moe, int64_t count) {
  moe.num_identity_experts = count;
  moe.gate = GridFloats(moe.num_experts() * moe.spec.d_model, 0.25F, 78);
}

void AddSharedExpert(ReferenceMoe& moe, bool gated) {
  moe.shared_spec =
      ExpertSpec{.d_model = moe.spec.d_model, .d_ff = 24, .activation = {}};
  moe.shared = RandomExpert(*moe.shared_spec, 1000);
  if (gated) moe.shared_gate = GridFloats(moe.spec.d_model, 0.25F, 79);
}

std::vector<float> HiddenStates(int64_t tokens, int64_t d_model) {
  return GridFloats(tokens * d_model, 1.0F, 5);
}

// The layer that `moe` describes, with all that it needs.
class TestLayer {
 public:
  explicit TestLayer(const ReferenceMoe& moe, int num_threads = 1)
      : executor_(num_threads),
        expert_workspace_(&executor_),
        workspace_(&expert_workspace_),
        layer_(Parts(moe)) {}

  struct Answer {
    std::vector<float> output;
    std::vector<int32_t> ids;
    std::vector<float> weights;
    ForwardStats stats;
  };

  Answer Forward(const std::vector<float>& hidden_states,
                 const Routing* given = nullptr) {
    const int64_t d_model = layer_.d_model();
    const auto tokens = static_cast<int64_t>(hidden_states.size()) / d_model;
    Answer answer;
    answer.output.assign(hidden_states.size(), -7.0F);
    MOE_EXPECT_OK(layer_.Forward(
        ConstMatrix(hidden_states.data(), tokens, d_model), given, workspace_,
        Matrix(answer.output.data(), tokens, d_model), answer.stats));
    const Routing& routing = workspace_.routing();
    for (int64_t t = 0; t < routing.ids.rows(); ++t) {
      const int64_t k = routing.ids.cols();
      answer.ids.insert(answer.ids.end(), routing.ids.Row(t),
                        routing.ids.Row(t) + k);
      answer.weights.insert(answer.weights.end(), routing.weights.Row(t),
                            routing.weights.Row(t) + k);
    }
    return answer;
  }

  const FfnLayer& layer() const { return layer_; }
  LayerWorkspace& workspace() { return workspace_; }

 private:
  std::unique_ptr<LocalExpertShard> Load(
      const ExpertSpec& spec, absl::Span<const ReferenceExpert> experts) {
    return LocalExpertShard::Load(spec, StoreExperts(spec, experts),
                                  WeightFormat::kF32, executor_);
  }

  FfnLayerParts Parts(const ReferenceMoe& moe) {
    FfnLayerParts parts;
    parts.experts = Load(moe.spec, moe.experts);
    if (!moe.gate.empty()) {
      RoutingRule& rule = parts.rule.emplace();
      rule.num_experts = moe.num_experts();
      rule.num_identity_experts = moe.num_identity_experts;
      rule.top_k = moe.top_k;
      rule.score = moe.score == ReferenceMoe::Score::kSigmoid
                       ? ScoreFunction::kSigmoid
                       : ScoreFunction::kSoftmax;
      rule.renormalize =
          moe.renormalize ? Renormalize::kSum : Renormalize::kNone;
      rule.scale = moe.scale;
      rule.placement = moe.weight_on_input ? WeightPlacement::kInput
                                           : WeightPlacement::kOutput;
      MOE_EXPECT_OK(rule.Validate());
      parts.gate.emplace(
          ConstMatrix(moe.gate.data(), moe.num_experts(), moe.spec.d_model),
          absl::Span<const float>());
    }
    if (moe.shared_spec.has_value()) {
      parts.shared_expert =
          Load(*moe.shared_spec, absl::MakeConstSpan(&moe.shared, 1));
      if (!moe.shared_gate.empty()) {
        parts.shared_expert_gate.emplace(
            ConstMatrix(moe.shared_gate.data(), 1, moe.spec.d_model),
            absl::Span<const float>());
      }
    }
    return parts;
  }

  Executor executor_;
  ExpertWorkspace expert_workspace_;
  LayerWorkspace workspace_;
  FfnLayer layer_;
};

// Routing chosen by the caller.
struct GivenRouting {
  int64_t k;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  Routing view() const {
    const auto tokens = static_cast<int64_t>(ids.size()) / k;
    return {.ids = MatrixView<const int32_t>(ids.data(), tokens, k),
            .weights = ConstMatrix(weights.data(), tokens, k)};
  }
  ReferenceRouting reference() const {
    ReferenceRouting routing{.top_k = k, .ids = ids, .weights = {}};
    for (const float w : weights) routing.weights.push_back({w, 0.0});
    return routing;
  }
};

// Compares a layer's own routing and output with the reference.
void ExpectAgreement(const ReferenceMoe& moe,
                     const std::vector<float>& hidden_states,
                     TestLayer& layer) {
  const auto tokens =
      static_cast<int64_t>(hidden_states.size()) / moe.spec.d_model;
  const ConstMatrix x(hidden_states.data(), tokens, moe.spec.d_model);
  const ReferenceRouting want = RunReferenceRouter(moe, x);
  const TestLayer::Answer got = layer.Forward(hidden_states);
  ASSERT_EQ(got.ids, want.ids);
  ASSERT_TRUE(IsWithin(ConstMatrix(got.weights.data(), tokens, moe.top_k),
                       want.weights));
  ASSERT_TRUE(IsWithin(ConstMatrix(got.output.data(), tokens, moe.spec.d_model),
                       RunReferenceMoe(moe, want, x)));
  EXPECT_EQ(got.stats.nonfinite_rows, 0);
}

struct VariantCase {
  std::string name;
  void (*change)(ReferenceMoe&);
};

class FfnLayerVariantTest : public ::testing::TestWithParam<VariantCase> {};

TEST_P(FfnLayerVariantTest, AgreesWithTheReferenceAtTinyAndOddSizes) {
  for (const int64_t d_model : {8, 96, 160}) {
    for (const int64_t num_experts : {1, 5, 40}) {
      for (const int64_t top_k : {1, 2, 5}) {
        if (top_k > num_experts) continue;
        ReferenceMoe moe = RandomMoe(d_model, num_experts, top_k);
        GetParam().change(moe);
        TestLayer layer(moe);
        for (int64_t tokens = 0; tokens <= 17; ++tokens) {
          // The large shapes at a few sizes only: the reference is slow.
          if (d_model == 160 && tokens % 4 > 1) continue;
          SCOPED_TRACE(absl::StrCat("d_model ", d_model, ", experts ",
                                    num_experts, ", top_k ", top_k, ", tokens ",
                                    tokens));
          ExpectAgreement(moe, HiddenStates(tokens, d_model), layer);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FfnLayerVariantTest,
    ::testing::Values(
        VariantCase{"SoftmaxRenormalized", [](ReferenceMoe&) {}},
        VariantCase{"SoftmaxOverAll",
                    [](ReferenceMoe& moe) { moe.renormalize = false; }},
        VariantCase{"SigmoidRenormalizedScaled",
                    [](ReferenceMoe& moe) {
                      moe.score = ReferenceMoe::Score::kSigmoid;
                      moe.scale = 2.5F;
                    }},
        VariantCase{"ClassicWithBias",
                    [](ReferenceMoe& moe) {
                      moe.spec.gated = false;
                      moe.spec.has_bias = true;
                      moe.spec.activation.activation = Activation::kGelu;
                      for (size_t e = 0; e < moe.experts.size(); ++e) {
                        moe.experts[e] =
                            RandomExpert(moe.spec, static_cast<uint32_t>(e));
                      }
                    }},
        VariantCase{"SharedExpert",
                    [](ReferenceMoe& moe) { AddSharedExpert(moe, false); }},
        VariantCase{"GatedSharedExpert",
                    [](ReferenceMoe& moe) { AddSharedExpert(moe, true); }},
        VariantCase{"WeightOnInput",
                    [](ReferenceMoe& moe) {
                      moe.score = ReferenceMoe::Score::kSigmoid;
                      moe.renormalize = false;
                      moe.weight_on_input = true;
                    }},
        VariantCase{"IdentityExperts",
                    [](ReferenceMoe& moe) { AddIdentityExperts(moe, 4); }},
        VariantCase{"IdentityExpertsAndWeightOnInput",
                    [](ReferenceMoe& moe) {
                      AddIdentityExperts(moe, 3);
                      moe.weight_on_input = true;
                    }}),
    [](const auto& test) { return test.param.name; });

TEST(FfnLayerRoutingTest, RenormalizedWeightsSumToOne) {
  for (const auto score :
       {ReferenceMoe::Score::kSoftmax, ReferenceMoe::Score::kSigmoid}) {
    ReferenceMoe moe = RandomMoe(96, 40, 6);
    moe.score = score;
    TestLayer layer(moe);
    const auto answer = layer.Forward(HiddenStates(50, 96));
    for (size_t t = 0; t < 50; ++t) {
      const double sum =
          std::accumulate(answer.weights.begin() + t * 6,
                          answer.weights.begin() + t * 6 + 6, 0.0);
      // Six divisions and the sum before them, each rounded once.
      EXPECT_NEAR(sum, 1.0, 12 * std::numeric_limits<float>::epsilon());
    }
  }
}

TEST(FfnLayerRoutingTest, EveryExpertIsChosenOnceWhenTopKIsAll) {
  const ReferenceMoe moe = RandomMoe(8, 5, 5);
  TestLayer layer(moe);
  const auto answer = layer.Forward(HiddenStates(11, 8));
  for (size_t t = 0; t < 11; ++t) {
    EXPECT_THAT(std::vector<int32_t>(answer.ids.begin() + t * 5,
                                     answer.ids.begin() + t * 5 + 5),
                ::testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  }
  EXPECT_THAT(layer.workspace().expert_offsets(),
              ElementsAre(0, 11, 22, 33, 44, 55));
}

TEST(FfnLayerRoutingTest, RouteAndForwardChooseAlike) {
  const ReferenceMoe moe = RandomMoe(96, 40, 4);
  TestLayer layer(moe);
  const auto x = HiddenStates(30, 96);
  const auto answer = layer.Forward(x);
  const ConstMatrix logits = layer.workspace().router_logits();
  ASSERT_EQ(logits.rows(), 30);
  ASSERT_EQ(logits.cols(), 40);
  const std::vector<float> want_logits(logits.data(), logits.data() + 30 * 40);

  ForwardStats stats;
  LayerWorkspace& workspace = layer.workspace();
  layer.layer().Route(ConstMatrix(x.data(), 30, 96), workspace, stats);
  const ConstMatrix again = workspace.router_logits();
  EXPECT_EQ(std::vector<float>(again.data(), again.data() + 30 * 40),
            want_logits);
  const Routing& routing = workspace.routing();
  EXPECT_EQ(
      std::vector<int32_t>(routing.ids.data(), routing.ids.data() + 30 * 4),
      answer.ids);
  EXPECT_EQ(std::vector<float>(routing.weights.data(),
                               routing.weights.data() + 30 * 4),
            answer.weights);
}

TEST(FfnLayerGivenRoutingTest, AgreesWithTheReference) {
  ReferenceMoe moe = RandomMoe(96, 5, 2);
  AddSharedExpert(moe, /*gated=*/true);
  AddIdentityExperts(moe, 2);
  TestLayer layer(moe);
  // Another number of experts per token than the layer's own; skips, identity
  // experts, a negative and a zero weight; expert 3 gets nothing.
  const GivenRouting given = {
      .k = 3,
      .ids = {0, 1, 2, -1, 4, -1, 5, 6, 0, -1, -1, -1, 2, 1, -1},
      .weights = {0.5F, 0.25F, 0.25F, 9, 1, 9, 0.3F, 0.6F, 0.1F, 9, 9, 9, -1.5F,
                  0, kNaN}};
  const auto x = HiddenStates(5, 96);
  const Routing routing = given.view();
  const auto answer = layer.Forward(x, &routing);
  const ConstMatrix states(x.data(), 5, 96);
  EXPECT_TRUE(IsWithin(ConstMatrix(answer.output.data(), 5, 96),
                       RunReferenceMoe(moe, given.reference(), states)));
  EXPECT_EQ(answer.ids, given.ids);
  EXPECT_EQ(layer.workspace().router_logits().rows(), 0);
  EXPECT_THAT(layer.workspace().expert_offsets(),
              ElementsAre(0, 2, 4, 6, 6, 7));
}

TEST(FfnLayerGivenRoutingTest, TheLayersOwnRoutingGivesTheSameBytes) {
  const ReferenceMoe moe = RandomMoe(96, 40, 4);
  TestLayer layer(moe);
  const auto x = HiddenStates(30, 96);
  const auto want = layer.Forward(x);
  const GivenRouting given = {4, want.ids, want.weights};
  const Routing routing = given.view();
  EXPECT_EQ(layer.Forward(x, &routing).output, want.output);
}

TEST(FfnLayerGivenRoutingTest, SkippingEverythingGivesZero) {
  const ReferenceMoe moe = RandomMoe(8, 5, 2);
  TestLayer layer(moe);
  const GivenRouting given = {1, {-1, -1, -1}, {1, 1, 1}};
  const Routing routing = given.view();
  EXPECT_THAT(layer.Forward(HiddenStates(3, 8), &routing).output, Each(0.0F));
}

TEST(FfnLayerGivenRoutingTest, AllTokensMayGoToOneExpert) {
  const ReferenceMoe moe = RandomMoe(96, 5, 2);
  TestLayer layer(moe);
  const GivenRouting given = {1, std::vector<int32_t>(300, 3),
                              std::vector<float>(300, 0.5F)};
  const auto x = HiddenStates(300, 96);
  const Routing routing = given.view();
  const auto answer = layer.Forward(x, &routing);
  EXPECT_TRUE(IsWithin(
      ConstMatrix(answer.output.data(), 300, 96),
      RunReferenceMoe(moe, given.reference(), ConstMatrix(x.data(), 300, 96))));
  EXPECT_THAT(layer.workspace().expert_offsets(),
              ElementsAre(0, 0, 0, 0, 300, 300));
}

TEST(FfnLayerGivenRoutingTest, IdentityExpertsReturnTheWeightedInput) {
  ReferenceMoe moe = RandomMoe(8, 5, 2);
  AddIdentityExperts(moe, 2);
  for (const bool weight_on_input : {false, true}) {
    moe.weight_on_input = weight_on_input;
    TestLayer layer(moe);
    const auto x = HiddenStates(3, 8);
    const GivenRouting given = {2, {5, 6, 6, -1, -1, 5}, {1, 2, 0.5, 9, 9, 0}};
    const Routing routing = given.view();
    const auto output = layer.Forward(x, &routing).output;
    const std::vector<float> factors = {3.0F, 0.5F, 0.0F};
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(output[i], factors[i / 8] * x[i]) << i;
    }
  }
}

TEST(FfnLayerDenseTest, IsItsOneExpert) {
  ReferenceMoe moe = RandomMoe(96, 1, 1);
  moe.gate.clear();
  TestLayer layer(moe);
  EXPECT_TRUE(layer.layer().dense());
  EXPECT_EQ(layer.layer().num_experts(), 0);
  EXPECT_EQ(layer.layer().top_k(), 0);
  EXPECT_EQ(layer.layer().shared_expert(), nullptr);
  for (int64_t tokens = 0; tokens <= 17; ++tokens) {
    const auto x = HiddenStates(tokens, 96);
    const GivenRouting all = {
        1, std::vector<int32_t>(static_cast<size_t>(tokens), 0),
        std::vector<float>(static_cast<size_t>(tokens), 1.0F)};
    const auto answer = layer.Forward(x);
    EXPECT_TRUE(IsWithin(ConstMatrix(answer.output.data(), tokens, 96),
                         RunReferenceMoe(moe, all.reference(),
                                         ConstMatrix(x.data(), tokens, 96))));
    EXPECT_THAT(answer.ids, IsEmpty());
    EXPECT_EQ(layer.workspace().routing().ids.rows(), 0);
  }
}

TEST(FfnLayerTest, TellsWhatItIsMadeOf) {
  ReferenceMoe moe = RandomMoe(96, 5, 2);
  AddSharedExpert(moe, /*gated=*/false);
  TestLayer layer(moe);
  EXPECT_FALSE(layer.layer().dense());
  EXPECT_EQ(layer.layer().d_model(), 96);
  EXPECT_EQ(layer.layer().num_experts(), 5);
  EXPECT_EQ(layer.layer().top_k(), 2);
  EXPECT_EQ(layer.layer().expert_spec().d_ff, 40);
  ASSERT_NE(layer.layer().shared_expert(), nullptr);
  EXPECT_EQ(layer.layer().shared_expert()->spec().d_ff, 24);
}

TEST(FfnLayerTest, NumberOfThreadsDoesNotChangeTheBytes) {
  ReferenceMoe moe = RandomMoe(160, 40, 4);
  AddSharedExpert(moe, /*gated=*/true);
  const auto x = RandomFloats(150 * 160, 1.0F, 6);
  TestLayer one(moe, 1);
  const auto want = one.Forward(x);
  for (const int num_threads : {2, 3}) {
    TestLayer several(moe, num_threads);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto got = several.Forward(x);
      EXPECT_EQ(got.output, want.output);
      EXPECT_EQ(got.ids, want.ids);
      EXPECT_EQ(got.weights, want.weights);
    }
  }
}

TEST(FfnLayerTest, ATokenHasTheSameBytesAloneAndInAnyBatchAndOrder) {
  constexpr int64_t kDModel = 160;
  constexpr size_t kTokens = 60;
  ReferenceMoe moe = RandomMoe(kDModel, 5, 2);
  AddSharedExpert(moe, /*gated=*/true);
  TestLayer layer(moe);
  const auto x = RandomFloats(kTokens * kDModel, 1.0F, 8);
  const auto want = layer.Forward(x).output;
  std::vector<float> reversed;
  for (size_t t = 0; t < kTokens; ++t) {
    reversed.insert(reversed.begin(), x.begin() + t * kDModel,
                    x.begin() + (t + 1) * kDModel);
  }
  const auto backwards = layer.Forward(reversed).output;
  for (size_t t = 0; t < kTokens; ++t) {
    SCOPED_TRACE(absl::StrCat("token ", t));
    const auto row_of = [](const std::vector<float>& rows, size_t row) {
      return std::vector<float>(rows.begin() + row * kDModel,
                                rows.begin() + (row + 1) * kDModel);
    };
    ASSERT_EQ(layer.Forward(row_of(x, t)).output, row_of(want, t));
    ASSERT_EQ(row_of(backwards, kTokens - 1 - t), row_of(want, t));
  }
}

// NaN and Inf ---------------------------------------------------------------

struct NonfiniteCase {
  std::string name;
  float value;
  bool dense = false;
  bool shared = false;
  bool identity = false;
  bool given = false;
};

class FfnLayerNonfiniteTest : public ::testing::TestWithParam<NonfiniteCase> {};

TEST_P(FfnLayerNonfiniteTest, MakesItsRowNaNAndLeavesTheOthersAsTheyWere) {
  constexpr int64_t kDModel = 96;
  constexpr size_t kTokens = 19;
  ReferenceMoe moe = RandomMoe(kDModel, 5, 2);
  if (GetParam().shared) AddSharedExpert(moe, /*gated=*/true);
  if (GetParam().identity) AddIdentityExperts(moe, 3);
  if (GetParam().dense) {
    moe.gate.clear();
    moe.experts.resize(1);
  }
  TestLayer layer(moe);
  const auto row_of = [](const std::vector<float>& rows, size_t row) {
    return std::vector<float>(rows.begin() + row * kDModel,
                              rows.begin() + (row + 1) * kDModel);
  };
  for (const size_t bad : {size_t{0}, size_t{7}, kTokens - 1}) {
    for (const size_t at : {size_t{0}, size_t{50}, size_t{kDModel - 1}}) {
      SCOPED_TRACE(absl::StrCat("row ", bad, ", element ", at));
      std::vector<float> x = RandomFloats(kTokens * kDModel, 1.0F, 9);
      x[bad * kDModel + at] = GetParam().value;
      std::vector<float> others = x;
      others.erase(others.begin() + bad * kDModel,
                   others.begin() + (bad + 1) * kDModel);

      GivenRouting given = {2, {}, {}};
      for (size_t t = 0; t < kTokens; ++t) {
        given.ids.push_back(t == bad ? -1 : static_cast<int32_t>(t % 4));
        given.ids.push_back(4);
        given.weights.insert(given.weights.end(), {0.75F, 0.25F});
      }
      GivenRouting given_others = given;
      given_others.ids.erase(given_others.ids.begin() + bad * 2,
                             given_others.ids.begin() + bad * 2 + 2);
      given_others.weights.resize(given_others.ids.size());
      const Routing routing = given.view();
      const Routing routing_others = given_others.view();
      const auto want =
          layer.Forward(others, GetParam().given ? &routing_others : nullptr);
      const auto got = layer.Forward(x, GetParam().given ? &routing : nullptr);

      EXPECT_EQ(want.stats.nonfinite_rows, 0);
      EXPECT_EQ(got.stats.nonfinite_rows, 1);
      EXPECT_THAT(row_of(got.output, bad), Each(::testing::IsNan()));
      for (size_t t = 0; t < kTokens; ++t) {
        if (t == bad) continue;
        ASSERT_EQ(row_of(got.output, t),
                  row_of(want.output, t < bad ? t : t - 1))
            << "token " << t;
      }
      // Ids stay valid and distinct.
      if (GetParam().dense || GetParam().given) continue;
      const auto first = got.ids.begin() + bad * 2;
      EXPECT_NE(first[0], first[1]);
      for (const int32_t id : got.ids) {
        EXPECT_GE(id, 0);
        EXPECT_LT(id, moe.num_experts());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FfnLayerNonfiniteTest,
    ::testing::Values(
        NonfiniteCase{"NaN", kNaN}, NonfiniteCase{"Inf", kInfinity},
        NonfiniteCase{"MinusInf", -kInfinity},
        NonfiniteCase{.name = "Dense", .value = kNaN, .dense = true},
        NonfiniteCase{
            .name = "SharedExpert", .value = kInfinity, .shared = true},
        NonfiniteCase{
            .name = "IdentityExperts", .value = kInfinity, .identity = true},
        NonfiniteCase{.name = "GivenRouting", .value = kNaN, .given = true}),
    [](const auto& test) { return test.param.name; });

TEST(FfnLayerStatsTest, CountsNonfiniteRowsOnTopOfThoseBefore) {
  const ReferenceMoe moe = RandomMoe(8, 5, 2);
  TestLayer layer(moe);
  auto x = HiddenStates(4, 8);
  x[0] = kNaN;
  x[9] = kInfinity;
  x[10] = kNaN;
  ForwardStats stats;
  std::vector<float> out(x.size());
  for (int64_t repeat = 1; repeat <= 2; ++repeat) {
    MOE_ASSERT_OK(layer.layer().Forward(ConstMatrix(x.data(), 4, 8), nullptr,
                                        layer.workspace(),
                                        Matrix(out.data(), 4, 8), stats));
    EXPECT_EQ(stats.nonfinite_rows, 2 * repeat);
  }
}

TEST(FfnLayerStatsTest, NearlyInfiniteIsFinite) {
  const ReferenceMoe moe = RandomMoe(8, 5, 2);
  TestLayer layer(moe);
  std::vector<float> x(8, std::numeric_limits<float>::max());
  x[3] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(layer.Forward(x).stats.nonfinite_rows, 0);
}

// Several batches at a time --------------------------------------------------

// Everything that a layer can have: experts of a smaller width between latent
// projections, and a shared expert with a gate.
FfnLayerParts PartsOfALatentLayer(int64_t d_model, Executor& executor) {
  ReferenceMoe moe = RandomMoe(/*d_model=*/96, /*num_experts=*/12, /*top_k=*/3);
  const int64_t latent = moe.spec.d_model;
  const ExpertSpec shared_spec = {
      .d_model = d_model, .d_ff = 24, .activation = {}};
  const auto linear = [](int64_t outputs, int64_t inputs, uint32_t seed) {
    const auto weights = RandomFloats(outputs * inputs, 0.25F, seed);
    return Linear(ConstMatrix(weights.data(), outputs, inputs), {});
  };
  FfnLayerParts parts;
  parts.rule.emplace();
  parts.rule->num_experts = moe.num_experts();
  parts.rule->top_k = moe.top_k;
  parts.gate = linear(moe.num_experts(), d_model, 1);
  parts.latent_in = linear(latent, d_model, 2);
  parts.latent_out = linear(d_model, latent, 3);
  parts.shared_expert_gate = linear(1, d_model, 4);
  parts.experts =
      LocalExpertShard::Load(moe.spec, StoreExperts(moe.spec, moe.experts),
                             WeightFormat::kF32, executor);
  parts.shared_expert = LocalExpertShard::Load(
      shared_spec, StoreExperts(shared_spec, {RandomExpert(shared_spec, 5)}),
      WeightFormat::kF32, executor);
  return parts;
}

TEST(FfnLayerTest, ThreadsWithWorkspacesOfTheirOwnGetTheBytesOfOne) {
  constexpr int64_t kDModel = 160;
  for (const int num_threads : {1, 2, 3}) {
    Executor executor(num_threads);
    const FfnLayer layer(PartsOfALatentLayer(kDModel, executor));
    const auto run = [&](const std::vector<float>& x,
                         LayerWorkspace& workspace) {
      const auto tokens = static_cast<int64_t>(x.size()) / kDModel;
      std::vector<float> out(x.size());
      ForwardStats stats;
      MOE_EXPECT_OK(layer.Forward(ConstMatrix(x.data(), tokens, kDModel),
                                  nullptr, workspace,
                                  Matrix(out.data(), tokens, kDModel), stats));
      return out;
    };
    std::vector<std::vector<float>> inputs;
    std::vector<std::vector<float>> want;
    ExpertWorkspace experts(&executor);
    LayerWorkspace alone(&experts);
    for (const int64_t tokens : {70, 3, 1}) {
      inputs.push_back(
          RandomFloats(tokens * kDModel, 1.0F, static_cast<uint32_t>(tokens)));
      want.push_back(run(inputs.back(), alone));
    }
    std::atomic<int> wrong = 0;
    {
      std::vector<std::jthread> threads;
      for (size_t thread = 0; thread < 2; ++thread) {
        threads.emplace_back([&, thread] {
          ExpertWorkspace own_experts(&executor);
          LayerWorkspace own(&own_experts);
          // Large beside small, and the other way round.
          for (size_t i = 0; i < 30; ++i) {
            const size_t b = (thread + i) % inputs.size();
            if (run(inputs[b], own) != want[b]) ++wrong;
          }
        });
      }
    }
    EXPECT_EQ(wrong.load(), 0) << num_threads << " threads";
  }
}

// Errors --------------------------------------------------------------------

class FailingShard final : public ExpertShard {
 public:
  explicit FailingShard(int64_t d_model) {
    spec_.d_model = d_model;
    spec_.d_ff = 1;
  }
  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override { return 1; }
  absl::Status Forward(const ExpertBatch&, ExpertWorkspace&, Matrix,
                       ExpertFailures&) const override {
    return absl::UnavailableError("shard 2 is gone");
  }

 private:
  ExpertSpec spec_;
};

// Experts that return their input, but for those that are gone.
class EchoShard final : public ExpertShard {
 public:
  explicit EchoShard(int64_t d_model, int64_t num_experts = 1,
                     std::vector<int32_t> gone = {})
      : num_experts_(num_experts), gone_(std::move(gone)) {
    spec_.d_model = d_model;
  }
  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override { return num_experts_; }
  absl::Status Forward(const ExpertBatch& batch, ExpertWorkspace&, Matrix out,
                       ExpertFailures& failures) const override {
    failures.Clear();
    for (const int32_t expert : gone_) {
      failures.Add(expert, absl::UnavailableError(
                               absl::StrCat("expert ", expert, " is gone")));
    }
    for (int64_t i = 0; i < out.rows(); ++i) {
      std::copy_n(batch.hidden_states.Row(batch.rows[static_cast<size_t>(i)]),
                  out.cols(), out.Row(i));
    }
    return absl::OkStatus();
  }

 private:
  const int64_t num_experts_;
  const std::vector<int32_t> gone_;
  ExpertSpec spec_;
};

absl::Status ForwardOnce(FfnLayerParts parts) {
  Executor executor(1);
  ExpertWorkspace experts(&executor);
  LayerWorkspace workspace(&experts);
  const FfnLayer layer(std::move(parts));
  const std::vector<float> x(2 * 4, 1.0F);
  std::vector<float> out(x.size());
  ForwardStats stats;
  return layer.Forward(ConstMatrix(x.data(), 2, 4), nullptr, workspace,
                       Matrix(out.data(), 2, 4), stats);
}

void MakeRouted(FfnLayerParts& parts) {
  const std::vector<float> gate(4, 1.0F);
  parts.rule.emplace();
  parts.rule->num_experts = 1;
  parts.rule->top_k = 1;
  parts.gate.emplace(ConstMatrix(gate.data(), 1, 4), absl::Span<const float>());
}

TEST(FfnLayerErrorTest, ReturnsThatOfTheExperts) {
  const auto lost =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shard 2 is gone"));
  FfnLayerParts dense;
  dense.experts = std::make_unique<FailingShard>(4);
  EXPECT_THAT(ForwardOnce(std::move(dense)), lost);

  FfnLayerParts routed;
  MakeRouted(routed);
  routed.experts = std::make_unique<FailingShard>(4);
  EXPECT_THAT(ForwardOnce(std::move(routed)), lost);

  FfnLayerParts shared;
  MakeRouted(shared);
  shared.experts = std::make_unique<EchoShard>(4);
  shared.shared_expert = std::make_unique<FailingShard>(4);
  EXPECT_THAT(ForwardOnce(std::move(shared)), lost);

  FfnLayerParts good;
  MakeRouted(good);
  good.experts = std::make_unique<EchoShard>(4);
  MOE_EXPECT_OK(ForwardOnce(std::move(good)));
}

TEST(FfnLayerErrorTest, AnExpertThatAllTokensVisitFailsTheBatch) {
  const auto gone =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("expert 0 is gone"));
  const auto missing = [] {
    return std::make_unique<EchoShard>(4, 1, std::vector<int32_t>{0});
  };
  FfnLayerParts dense;
  dense.experts = missing();
  EXPECT_THAT(ForwardOnce(std::move(dense)), gone);

  FfnLayerParts shared;
  MakeRouted(shared);
  shared.experts = std::make_unique<EchoShard>(4);
  shared.shared_expert = missing();
  EXPECT_THAT(ForwardOnce(std::move(shared)), gone);
}

TEST(FfnLayerErrorTest, ARoutedExpertFailsTheTokensThatChoseIt) {
  FfnLayerParts parts;
  parts.rule.emplace();
  parts.rule->num_experts = 4;
  parts.rule->top_k = 2;
  parts.experts = std::make_unique<EchoShard>(4, 4, std::vector<int32_t>{1, 3});
  const FfnLayer layer(std::move(parts));
  Executor executor(1);
  ExpertWorkspace experts(&executor);
  LayerWorkspace workspace(&experts);
  const std::vector<float> x(3 * 4, 1.0F);
  std::vector<float> out(x.size());
  ForwardStats stats;
  const auto forward = [&](const GivenRouting& given) {
    const Routing routing = given.view();
    return layer.Forward(ConstMatrix(x.data(), 3, 4), &routing, workspace,
                         Matrix(out.data(), 3, 4), stats);
  };
  MOE_ASSERT_OK(forward({2, {0, 2, 2, 3, 1, 3}, {1, 1, 1, 1, 1, 1}}));
  EXPECT_THAT(workspace.failed_experts(), ElementsAre(-1, 3, 1));
  EXPECT_THAT(
      workspace.failures().StatusOf(3),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("expert 3 is gone")));
  MOE_EXPECT_OK(workspace.failures().StatusOf(2));
  EXPECT_THAT(std::vector<float>(out.begin(), out.begin() + 4), Each(2.0F));
}

TEST(FfnLayerDeathTest, NeedsExpertsAndARuleWithTheGate) {
  EXPECT_DEATH(FfnLayer{FfnLayerParts()}, "experts");
  FfnLayerParts no_rule;
  MakeRouted(no_rule);
  no_rule.rule.reset();
  no_rule.experts = std::make_unique<EchoShard>(4);
  EXPECT_DEATH(FfnLayer{std::move(no_rule)}, "gate");
}

TEST(FfnLayerTest, WithoutAGateItRunsGivenRoutingAlone) {
  FfnLayerParts parts;
  MakeRouted(parts);
  parts.gate.reset();
  parts.experts = std::make_unique<EchoShard>(4);
  const FfnLayer layer(std::move(parts));
  EXPECT_FALSE(layer.has_router());
  EXPECT_FALSE(layer.dense());
  EXPECT_EQ(layer.d_model(), layer.expert_spec().d_model);
}

// Memory --------------------------------------------------------------------

class FfnLayerAllocationTest : public ::testing::TestWithParam<int> {};

TEST_P(FfnLayerAllocationTest, SteadyStateAllocatesNothing) {
  ReferenceMoe moe = RandomMoe(96, 40, 4);
  AddSharedExpert(moe, /*gated=*/true);
  ReferenceMoe dense_moe = RandomMoe(96, 1, 1);
  dense_moe.gate.clear();
  TestLayer routed(moe, GetParam());
  TestLayer dense(dense_moe, GetParam());
  const auto x = HiddenStates(100, 96);
  std::vector<float> out(x.size());
  ForwardStats stats;
  const auto run = [&](int64_t tokens) {
    for (TestLayer* layer : {&routed, &dense}) {
      const absl::Status status = layer->layer().Forward(
          ConstMatrix(x.data(), tokens, 96), nullptr, layer->workspace(),
          Matrix(out.data(), tokens, 96), stats);
      if (!status.ok()) return false;
    }
    return true;
  };
  ASSERT_TRUE(run(100));
  const int64_t before = AllocationCount();
  bool ok = true;
  for (int repeat = 0; repeat < 20; ++repeat) {
    // Smaller batches in between.
    for (const int64_t tokens : {100, 1, 0, 17, 100}) ok = run(tokens) && ok;
  }
  EXPECT_EQ(AllocationCount() - before, 0);
  EXPECT_TRUE(ok);
}

TEST_P(FfnLayerAllocationTest, TheCounterCounts) {
  const int64_t before = AllocationCount();
  TestLayer layer(RandomMoe(8, 2, 1), GetParam());
  const int64_t loaded = AllocationCount();
  EXPECT_GT(loaded, before);
  AlignedBuffer<float> buffer(10);
  EXPECT_EQ(AllocationCount(), loaded + 1);
}

INSTANTIATE_TEST_SUITE_P(Threads, FfnLayerAllocationTest,
                         ::testing::Values(1, 2),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moe
