#include "experts/onednn_expert_shard.h"

#include <numeric>
#include <vector>

#include "experts/executor.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

// Rows 0, 1, 2, ... to the experts in turn, `counts[e]` of them each.
void ExpectAgreesWithReference(const ExpertSpec& spec,
                               const std::vector<int>& counts,
                               const std::vector<float>& input_scales,
                               int num_threads) {
  std::vector<ReferenceExpert> experts;
  std::vector<int32_t> offsets = {0};
  for (size_t e = 0; e < counts.size(); ++e) {
    experts.push_back(RandomExpert(spec, static_cast<uint32_t>(e)));
    offsets.push_back(offsets.back() + counts[e]);
  }
  const int64_t rows = offsets.back();
  std::vector<int32_t> row_ids(static_cast<size_t>(rows));
  std::iota(row_ids.begin(), row_ids.end(), 0);
  const auto x = RandomFloats(rows * spec.d_model, 1.0F, 5);

  Executor executor(num_threads);
  const auto shard =
      OneDnnExpertShard::Load(spec, StoreExperts(spec, experts), &executor);
  EXPECT_EQ(shard->num_experts(), static_cast<int64_t>(counts.size()));
  std::vector<float> out(x.size(), -1.0F);
  MOE_ASSERT_OK(shard->Forward(
      {.hidden_states = ConstMatrix(x.data(), rows, spec.d_model),
       .offsets = offsets,
       .rows = row_ids,
       .input_scales = input_scales},
      Matrix(out.data(), rows, spec.d_model)));

  std::vector<Bounded> want;
  for (size_t e = 0; e < counts.size(); ++e) {
    for (int32_t row = offsets[e]; row < offsets[e + 1]; ++row) {
      std::vector<Bounded> input;
      for (int64_t c = 0; c < spec.d_model; ++c) {
        const float scale = input_scales.empty()
                                ? 1.0F
                                : input_scales[static_cast<size_t>(row)];
        // Scaling rounds as the shard does.
        input.push_back(
            {static_cast<float>(x[static_cast<size_t>(row * spec.d_model + c)] *
                                scale),
             0.0});
      }
      const auto y = RunReferenceExpert(spec, experts[e], input);
      want.insert(want.end(), y.begin(), y.end());
    }
  }
  EXPECT_TRUE(IsWithin(ConstMatrix(out.data(), rows, spec.d_model), want));
}

TEST(OneDnnExpertShardTest, AgreesWithTheReference) {
  for (const int num_threads : {1, 2}) {
    for (const bool gated : {true, false}) {
      for (const bool has_bias : {true, false}) {
        const ExpertSpec spec = {.d_model = 96,
                                 .d_ff = 40,
                                 .gated = gated,
                                 .has_bias = has_bias,
                                 .activation = {}};
        ExpectAgreesWithReference(spec, {3, 0, 17, 1}, {}, num_threads);
      }
    }
  }
}

TEST(OneDnnExpertShardTest, CutsLargeMatricesIntoBlocks) {
  ExpectAgreesWithReference({.d_model = 300, .d_ff = 520, .activation = {}},
                            {270}, {}, 2);
}

TEST(OneDnnExpertShardTest, ScalesTheInputs) {
  ExpectAgreesWithReference({.d_model = 8, .d_ff = 5, .activation = {}}, {2, 1},
                            {0.5F, -2.0F, 0.3F}, 1);
}

TEST(OneDnnExpertShardTest, NoRowsAreNoWork) {
  ExpectAgreesWithReference({.d_model = 8, .d_ff = 5, .activation = {}}, {0, 0},
                            {}, 1);
}

}  // namespace
}  // namespace moe
