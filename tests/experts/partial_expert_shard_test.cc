#include "experts/partial_expert_shard.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "experts/local_expert_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

constexpr int64_t kNumExperts = 6;
constexpr int64_t kDModel = 40;
constexpr int64_t kTokens = 5;

class PartialExpertShardTest : public ::testing::Test {
 protected:
  PartialExpertShardTest() {
    for (uint32_t e = 0; e < kNumExperts; ++e) {
      experts_.push_back(RandomExpert(spec_, e + 1));
    }
  }

  std::unique_ptr<LocalExpertShard> Load(const std::vector<int32_t>& ids) {
    const std::vector<StoredExpert> all = StoreExperts(spec_, experts_);
    std::vector<StoredExpert> some;
    for (const int32_t id : ids) some.push_back(all[static_cast<size_t>(id)]);
    return LocalExpertShard::Load(spec_, some, WeightFormat::kF32, executor_);
  }

  // counts: rows of each expert
  std::vector<float> Run(const ExpertShard& shard,
                         const std::vector<int>& counts) {
    std::vector<int32_t> offsets = {0};
    std::vector<int32_t> rows;
    for (const int count : counts) {
      for (int32_t i = 0; i < count; ++i) rows.push_back(i);
      offsets.push_back(static_cast<int32_t>(rows.size()));
    }
    const auto assignments = static_cast<int64_t>(rows.size());
    std::vector<float> out(rows.size() * kDModel);
    MOE_EXPECT_OK(shard.Forward(
        {.hidden_states = ConstMatrix(x_.data(), kTokens, kDModel),
         .offsets = offsets,
         .rows = rows,
         .input_scales = {}},
        workspace_, Matrix(out.data(), assignments, kDModel), failures_));
    return out;
  }

  const ExpertSpec spec_{.d_model = kDModel, .d_ff = 24, .activation = {}};
  const std::vector<float> x_ = RandomFloats(kTokens * kDModel, 1.0F, 9);
  std::vector<ReferenceExpert> experts_;
  Executor executor_{1};
  ExpertWorkspace workspace_{&executor_};
  ExpertFailures failures_;  // of the last Run
};

TEST_F(PartialExpertShardTest, GivesTheBytesOfTheWholeLayer) {
  const auto whole = Load({0, 1, 2, 3, 4, 5});
  struct Case {
    std::vector<int32_t> ids;
    std::vector<int> counts;
  };
  for (const Case& c :
       std::vector<Case>{{{1, 4}, {0, 3, 0, 0, 2, 0}},
                         {{1, 4}, {0, 0, 0, 0, 5, 0}},
                         {{1, 4}, {0, 0, 0, 0, 0, 0}},
                         {{0}, {2, 0, 0, 0, 0, 0}},
                         {{5}, {0, 0, 0, 0, 0, 1}},
                         {{0, 1, 2, 3, 4, 5}, {1, 2, 3, 1, 2, 3}}}) {
    const PartialExpertShard part(Load(c.ids), c.ids, kNumExperts);
    EXPECT_EQ(Run(part, c.counts), Run(*whole, c.counts));
    EXPECT_TRUE(failures_.empty());
  }
}

TEST_F(PartialExpertShardTest, HasTheShapeOfTheLayerAndTheMemoryOfItsPart) {
  const PartialExpertShard part(Load({1, 4}), {1, 4}, kNumExperts);
  EXPECT_EQ(part.num_experts(), kNumExperts);
  EXPECT_EQ(part.spec().d_ff, spec_.d_ff);
  EXPECT_EQ(part.weights().total(), Load({2, 3})->weights_bytes());
}

// Two experts of which the second is gone.
class HalfGoneShard final : public ExpertShard {
 public:
  explicit HalfGoneShard(const ExpertSpec& spec) : spec_(spec) {}
  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override { return 2; }
  absl::Status Forward(const ExpertBatch& /*batch*/,
                       ExpertWorkspace& /*workspace*/, Matrix /*out*/,
                       ExpertFailures& failures) const override {
    failures.Clear();
    failures.Add(1, absl::UnavailableError("gone"));
    return absl::OkStatus();
  }

 private:
  const ExpertSpec spec_;
};

TEST_F(PartialExpertShardTest, FailuresAreThoseOfItsIds) {
  const PartialExpertShard part(std::make_unique<HalfGoneShard>(spec_), {1, 4},
                                kNumExperts);
  Run(part, {0, 2, 0, 0, 2, 0});
  MOE_EXPECT_OK(failures_.StatusOf(1));
  EXPECT_THAT(failures_.StatusOf(4),
              StatusIs(absl::StatusCode::kUnavailable, "gone"));
}

}  // namespace
}  // namespace moe
