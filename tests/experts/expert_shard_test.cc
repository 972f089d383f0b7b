// What all kinds of shards in this process promise to who runs several batches
// at a time.

#include "experts/expert_shard.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "experts/local_expert_shard.h"
#include "experts/onednn_expert_shard.h"
#include "experts/partial_expert_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

constexpr int32_t kNumExperts = 6;
constexpr ExpertSpec kSpec = {
    .d_model = 96, .d_ff = 280, .has_bias = true, .activation = {}};

// Experts [first, kNumExperts).
std::vector<StoredExpert> StoreFrom(const std::vector<ReferenceExpert>& all,
                                    size_t first) {
  std::vector<StoredExpert> experts = StoreExperts(kSpec, all);
  experts.erase(experts.begin(),
                experts.begin() + static_cast<std::ptrdiff_t>(first));
  return experts;
}

struct Kind {
  std::string name;
  int32_t first_expert;  // that has rows
  std::unique_ptr<ExpertShard> (*load)(
      const std::vector<ReferenceExpert>& experts, Executor& executor);
};

class ExpertShardTest : public ::testing::TestWithParam<Kind> {
 protected:
  ExpertShardTest() {
    for (uint32_t e = 0; e < kNumExperts; ++e) {
      experts_.push_back(RandomExpert(kSpec, e + 1));
    }
  }

  // `rows` rows for each expert, but none for the second.
  struct TestBatch {
    TestBatch(int32_t first_expert, int32_t rows_each)
        : tokens(rows_each),
          hidden_states(RandomFloats(tokens * kSpec.d_model, 1.0F,
                                     static_cast<uint32_t>(rows_each))) {
      for (int32_t e = 0; e < kNumExperts; ++e) {
        const bool none = e < first_expert || e == 1;
        for (int32_t i = 0; i < rows_each && !none; ++i) rows.push_back(i);
        offsets.push_back(static_cast<int32_t>(rows.size()));
      }
    }
    ExpertBatch view() const {
      return {.hidden_states =
                  ConstMatrix(hidden_states.data(), tokens, kSpec.d_model),
              .offsets = offsets,
              .rows = rows,
              .input_scales = {}};
    }

    int64_t tokens;
    std::vector<float> hidden_states;
    std::vector<int32_t> offsets = {0};
    std::vector<int32_t> rows;
  };

  static std::vector<float> Forward(const ExpertShard& shard,
                                    const TestBatch& batch,
                                    ExpertWorkspace& workspace) {
    std::vector<float> out(batch.rows.size() *
                           static_cast<size_t>(kSpec.d_model));
    ExpertFailures failures;
    failures.Add(3, absl::InternalError("of the batch before"));
    MOE_EXPECT_OK(shard.Forward(
        batch.view(), workspace,
        Matrix(out.data(), static_cast<int64_t>(batch.rows.size()),
               kSpec.d_model),
        failures));
    EXPECT_TRUE(failures.empty());
    return out;
  }

  std::vector<ReferenceExpert> experts_;
};

TEST_P(ExpertShardTest, ThreadsWithWorkspacesOfTheirOwnGetTheBytesOfOne) {
  for (const int num_threads : {1, 2, 3}) {
    Executor executor(num_threads);
    const auto shard = GetParam().load(experts_, executor);
    const std::vector<TestBatch> batches = {{GetParam().first_expert, 70},
                                            {GetParam().first_expert, 3},
                                            {GetParam().first_expert, 1}};
    std::vector<std::vector<float>> want;
    ExpertWorkspace alone(&executor);
    for (const TestBatch& batch : batches) {
      want.push_back(Forward(*shard, batch, alone));
    }
    std::atomic<int> wrong = 0;
    {
      std::vector<std::jthread> threads;
      for (size_t thread = 0; thread < 2; ++thread) {
        threads.emplace_back([&, thread] {
          ExpertWorkspace workspace(&executor);
          // Large beside small, and the other way round.
          for (size_t i = 0; i < 30; ++i) {
            const size_t b = (thread + i) % batches.size();
            if (Forward(*shard, batches[b], workspace) != want[b]) ++wrong;
          }
        });
      }
    }
    EXPECT_EQ(wrong.load(), 0) << num_threads << " threads";
  }
}

TEST_P(ExpertShardTest, RunsOnAnotherExecutorThanItWasLoadedBy) {
  auto loader = std::make_unique<Executor>(3);
  const auto shard = GetParam().load(experts_, *loader);
  const TestBatch batch(GetParam().first_expert, 5);
  ExpertWorkspace workspace(loader.get());
  const std::vector<float> want = Forward(*shard, batch, workspace);
  loader.reset();
  Executor executor(2);
  ExpertWorkspace other(&executor);
  EXPECT_EQ(Forward(*shard, batch, other), want);
}

INSTANTIATE_TEST_SUITE_P(
    All, ExpertShardTest,
    ::testing::Values(
        Kind{"Simd", 0,
             [](const std::vector<ReferenceExpert>& experts,
                Executor& executor) -> std::unique_ptr<ExpertShard> {
               return LocalExpertShard::Load(kSpec,
                                             StoreExperts(kSpec, experts),
                                             WeightFormat::kF32, executor);
             }},
        Kind{"OneDnn", 0,
             [](const std::vector<ReferenceExpert>& experts,
                Executor& executor) -> std::unique_ptr<ExpertShard> {
               return OneDnnExpertShard::Load(
                   kSpec, StoreExperts(kSpec, experts), executor);
             }},
        Kind{"Partial", 2,
             [](const std::vector<ReferenceExpert>& experts,
                Executor& executor) -> std::unique_ptr<ExpertShard> {
               return std::make_unique<PartialExpertShard>(
                   LocalExpertShard::Load(kSpec, StoreFrom(experts, 2),
                                          WeightFormat::kF32, executor),
                   std::vector<int32_t>{2, 3, 4, 5}, kNumExperts);
             }}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace moe
