#include "router/dispatch.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Expert ids of a batch, and as weights the numbers of the pairs.
struct Pairs {
  int64_t tokens = 0;
  int64_t top_k = 0;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  Pairs(int64_t t, int64_t k, std::vector<int32_t> i)
      : tokens(t), top_k(k), ids(std::move(i)), weights(ids.size()) {
    std::iota(weights.begin(), weights.end(), 1.0F);
  }
  void Build(Dispatch& dispatch, int64_t num_ffn_experts,
             WeightPlacement placement = WeightPlacement::kOutput) const {
    dispatch.Build(MatrixView<const int32_t>(ids.data(), tokens, top_k),
                   ConstMatrix(weights.data(), tokens, top_k), num_ffn_experts,
                   placement);
  }
};

// Distinct experts in each row; each pair is skipped with probability `skip`.
Pairs RandomPairs(int64_t tokens, int64_t top_k, int64_t num_experts,
                  double skip, std::mt19937& generator) {
  std::vector<int32_t> ids;
  std::vector<int32_t> experts(static_cast<size_t>(num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  std::bernoulli_distribution skipped(skip);
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), generator);
    for (int64_t j = 0; j < top_k; ++j) {
      ids.push_back(skipped(generator) ? -1 : experts[static_cast<size_t>(j)]);
    }
  }
  return Pairs(tokens, top_k, std::move(ids));
}

// All that the header promises, for any batch.
void CheckInvariants(const Pairs& pairs, const Dispatch& dispatch,
                     int64_t num_ffn_experts, WeightPlacement placement) {
  const auto offsets = dispatch.offsets();
  ASSERT_EQ(static_cast<int64_t>(offsets.size()), num_ffn_experts + 1);
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end()));
  const auto computed = std::count_if(
      pairs.ids.begin(), pairs.ids.end(),
      [&](int32_t id) { return id >= 0 && id < num_ffn_experts; });
  EXPECT_EQ(offsets.back(), computed);
  EXPECT_EQ(dispatch.num_assignments(), computed);

  const std::vector<float> states(static_cast<size_t>(pairs.tokens));
  const ExpertBatch batch =
      dispatch.Batch(ConstMatrix(states.data(), pairs.tokens, 1));
  EXPECT_EQ(batch.hidden_states.data(), states.data());
  EXPECT_EQ(batch.offsets.data(), offsets.data());
  ASSERT_EQ(static_cast<int64_t>(batch.rows.size()), computed);
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    // Ascending and distinct: an expert sees a token at most once.
    for (int32_t i = offsets[e] + 1; i < offsets[e + 1]; ++i) {
      EXPECT_LT(batch.rows[static_cast<size_t>(i - 1)],
                batch.rows[static_cast<size_t>(i)]);
    }
  }

  const auto assignments = dispatch.assignments();
  ASSERT_EQ(assignments.size(), pairs.ids.size());
  std::vector<int> used(static_cast<size_t>(computed), 0);
  for (size_t pair = 0; pair < assignments.size(); ++pair) {
    const int32_t id = pairs.ids[pair];
    if (id < 0) {
      EXPECT_EQ(assignments[pair], kSkipped);
    } else if (id >= num_ffn_experts) {
      EXPECT_EQ(assignments[pair], kUnchanged);
    } else {
      const auto at = static_cast<size_t>(assignments[pair]);
      EXPECT_GE(assignments[pair], offsets[static_cast<size_t>(id)]);
      EXPECT_LT(assignments[pair], offsets[static_cast<size_t>(id) + 1]);
      EXPECT_EQ(batch.rows[at], static_cast<int64_t>(pair) / pairs.top_k);
      ++used[at];
      if (placement == WeightPlacement::kInput) {
        EXPECT_EQ(batch.input_scales[at], pairs.weights[pair]);
      }
    }
  }
  EXPECT_THAT(used, Each(1));
  EXPECT_EQ(static_cast<int64_t>(batch.input_scales.size()),
            placement == WeightPlacement::kInput ? computed : 0);
}

TEST(DispatchTest, HoldsForRandomBatches) {
  Dispatch dispatch;  // One for all, as in a server.
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 generator(seed);
    const auto uniform = [&](int64_t first, int64_t last) {
      return std::uniform_int_distribution<int64_t>(first, last)(generator);
    };
    const int64_t num_experts = uniform(1, 40);
    const int64_t num_ffn_experts = uniform(1, num_experts);
    const int64_t top_k = uniform(1, std::min<int64_t>(num_experts, 8));
    const double skip = seed % 3 == 0 ? 0.2 : 0.0;
    const Pairs pairs =
        RandomPairs(uniform(0, 50), top_k, num_experts, skip, generator);
    const auto placement =
        seed % 2 == 0 ? WeightPlacement::kOutput : WeightPlacement::kInput;
    pairs.Build(dispatch, num_ffn_experts, placement);
    CheckInvariants(pairs, dispatch, num_ffn_experts, placement);
    if (HasFatalFailure()) return;
  }
}

TEST(DispatchTest, EachTokenAppearsTopKTimes) {
  std::mt19937 generator(1);
  const Pairs pairs = RandomPairs(31, 6, 16, /*skip=*/0.0, generator);
  Dispatch dispatch;
  pairs.Build(dispatch, 16);
  std::vector<int> seen(31, 0);
  const std::vector<float> states(31);
  for (const int32_t row :
       dispatch.Batch(ConstMatrix(states.data(), 31, 1)).rows) {
    ++seen[static_cast<size_t>(row)];
  }
  EXPECT_THAT(seen, Each(6));
  EXPECT_EQ(dispatch.offsets().back(), 31 * 6);
}

TEST(DispatchTest, GroupsByExpertInTokenOrder) {
  Dispatch dispatch;
  Pairs(3, 2, {2, 0, 0, 2, 2, 1}).Build(dispatch, 4);
  EXPECT_THAT(dispatch.offsets(), ElementsAre(0, 2, 3, 6, 6));
  EXPECT_THAT(dispatch.assignments(), ElementsAre(3, 0, 1, 4, 5, 2));
  const std::vector<float> states(3);
  EXPECT_THAT(dispatch.Batch(ConstMatrix(states.data(), 3, 1)).rows,
              ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(DispatchTest, AllTokensToOneExpert) {
  Dispatch dispatch;
  Pairs(4, 1, {2, 2, 2, 2}).Build(dispatch, 5);
  EXPECT_THAT(dispatch.offsets(), ElementsAre(0, 0, 0, 4, 4, 4));
  EXPECT_THAT(dispatch.assignments(), ElementsAre(0, 1, 2, 3));
}

TEST(DispatchTest, SkipsAndIdentityExpertsTakeNoAssignment) {
  Dispatch dispatch;
  Pairs(2, 3, {-1, 3, 1, 2, -1, -1}).Build(dispatch, 2);
  EXPECT_THAT(dispatch.offsets(), ElementsAre(0, 0, 1));
  EXPECT_THAT(
      dispatch.assignments(),
      ElementsAre(kSkipped, kUnchanged, 0, kUnchanged, kSkipped, kSkipped));
}

TEST(DispatchTest, NoTokensMakeNoAssignments) {
  Dispatch dispatch;
  Pairs(3, 2, {0, 1, 0, 1, 0, 1}).Build(dispatch, 2);
  Pairs(0, 2, {}).Build(dispatch, 2);
  EXPECT_THAT(dispatch.offsets(), ElementsAre(0, 0, 0));
  EXPECT_THAT(dispatch.assignments(), IsEmpty());
  EXPECT_EQ(dispatch.num_assignments(), 0);
}

TEST(DispatchTest, DenseSendsEveryTokenToTheOnlyExpert) {
  Dispatch dispatch;
  // What a batch before left behind, input scales above all, must be gone.
  Pairs(2, 1, {0, 1}).Build(dispatch, 2, WeightPlacement::kInput);
  dispatch.BuildDense(3);
  EXPECT_THAT(dispatch.offsets(), ElementsAre(0, 3));
  EXPECT_THAT(dispatch.assignments(), IsEmpty());
  const std::vector<float> states(3);
  const ExpertBatch batch = dispatch.Batch(ConstMatrix(states.data(), 3, 1));
  EXPECT_THAT(batch.rows, ElementsAre(0, 1, 2));
  EXPECT_THAT(batch.input_scales, IsEmpty());
  dispatch.BuildDense(0);
  EXPECT_THAT(dispatch.offsets(), ElementsAre(0, 0));
  EXPECT_EQ(dispatch.num_assignments(), 0);
}

}  // namespace
}  // namespace moe
