#include "experts/local_expert_shard.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

std::vector<ReferenceExpert> RandomExperts(const ExpertSpec& spec,
                                           int64_t num_experts) {
  std::vector<ReferenceExpert> experts;
  for (int64_t e = 0; e < num_experts; ++e) {
    experts.push_back(RandomExpert(spec, static_cast<uint32_t>(e) + 1));
  }
  return experts;
}

// Hidden states, and which of their rows go to which expert.
struct TestBatch {
  // rows_per_expert: how many each expert gets; expert e's first is token e.
  TestBatch(const ExpertSpec& spec, const std::vector<int>& rows_per_expert)
      : d_model(spec.d_model),
        tokens(std::accumulate(rows_per_expert.begin(), rows_per_expert.end(),
                               int64_t{1})),
        hidden_states(RandomFloats(tokens * d_model, 1.0F, 99)),
        offsets({0}) {
    for (size_t e = 0; e < rows_per_expert.size(); ++e) {
      for (int i = 0; i < rows_per_expert[e]; ++i) {
        rows.push_back(static_cast<int32_t>((e + static_cast<size_t>(i)) %
                                            static_cast<size_t>(tokens)));
      }
      offsets.push_back(static_cast<int32_t>(rows.size()));
    }
  }

  ConstMatrix states() const {
    return ConstMatrix(hidden_states.data(), tokens, d_model);
  }
  ExpertBatch batch() const {
    return {.hidden_states = states(),
            .offsets = offsets,
            .rows = rows,
            .input_scales = input_scales};
  }
  int64_t assignments() const { return static_cast<int64_t>(rows.size()); }

  std::vector<Bounded> Want(const ExpertSpec& spec,
                            const std::vector<ReferenceExpert>& experts) const {
    std::vector<Bounded> want;
    for (size_t e = 0; e < experts.size(); ++e) {
      for (int32_t i = offsets[e]; i < offsets[e + 1]; ++i) {
        const auto at = static_cast<size_t>(i);
        const double scale = input_scales.empty() ? 1.0 : input_scales[at];
        std::vector<Bounded> x;
        for (int64_t c = 0; c < d_model; ++c) {
          const double value = states().Row(rows[at])[c] * scale;
          // The product with the scale is rounded once.
          x.push_back({value, std::fabs(value) *
                                  std::numeric_limits<float>::epsilon()});
        }
        const auto y = RunReferenceExpert(spec, experts[e], x);
        want.insert(want.end(), y.begin(), y.end());
      }
    }
    return want;
  }

  int64_t d_model;
  int64_t tokens;
  std::vector<float> hidden_states;
  std::vector<int32_t> offsets;
  std::vector<int32_t> rows;
  std::vector<float> input_scales;
};

// A shard, with all that it needs.
class TestShard {
 public:
  TestShard(const ExpertSpec& spec, const std::vector<ReferenceExpert>& experts,
            int num_threads = 1, const NumaNodes& nodes = {})
      : executor_(num_threads, nodes),
        workspace_(&executor_),
        shard_(LocalExpertShard::Load(spec, StoreExperts(spec, experts),
                                      WeightFormat::kF32, executor_)) {}

  std::vector<float> Forward(const TestBatch& batch) {
    std::vector<float> out(
        static_cast<size_t>(batch.assignments() * batch.d_model),
        std::numeric_limits<float>::quiet_NaN());
    Forward(batch, Matrix(out.data(), batch.assignments(), batch.d_model));
    return out;
  }
  void Forward(const TestBatch& batch, Matrix out) {
    ExpertFailures failures;
    MOE_EXPECT_OK(shard_->Forward(batch.batch(), workspace_, out, failures));
    EXPECT_TRUE(failures.empty());
  }
  const LocalExpertShard& shard() { return *shard_; }

 private:
  Executor executor_;
  ExpertWorkspace workspace_;
  std::unique_ptr<LocalExpertShard> shard_;
};

::testing::AssertionResult Agrees(const TestBatch& batch,
                                  const std::vector<float>& got,
                                  const ExpertSpec& spec,
                                  const std::vector<ReferenceExpert>& experts) {
  return IsWithin(ConstMatrix(got.data(), batch.assignments(), batch.d_model),
                  batch.Want(spec, experts));
}

struct SpecCase {
  std::string name;
  ExpertSpec spec;
};

class LocalExpertShardTest : public ::testing::TestWithParam<SpecCase> {};

TEST_P(LocalExpertShardTest, AgreesWithTheReferenceAtTinyAndOddSizes) {
  for (const int64_t d_model : {1, 8, 17, 96, 160}) {
    for (const int64_t d_ff : {1, 7, 40}) {
      ExpertSpec spec = GetParam().spec;
      spec.d_model = d_model;
      spec.d_ff = d_ff;
      const auto experts = RandomExperts(spec, 4);
      TestShard shard(spec, experts);
      for (int rows = 1; rows <= 17; ++rows) {
        SCOPED_TRACE(absl::StrCat("d_model ", d_model, ", d_ff ", d_ff,
                                  ", rows ", rows));
        // One expert with many rows, one with none, one with one.
        const TestBatch batch(spec, {rows, 0, 1, rows / 2});
        ASSERT_TRUE(Agrees(batch, shard.Forward(batch), spec, experts));
      }
    }
  }
}

TEST_P(LocalExpertShardTest, ScalesTheInput) {
  ExpertSpec spec = GetParam().spec;
  spec.d_model = 24;
  spec.d_ff = 10;
  const auto experts = RandomExperts(spec, 3);
  TestShard shard(spec, experts);
  TestBatch batch(spec, {4, 3, 2});
  batch.input_scales = {0.0F, 1.0F, 0.3F, -2.0F, 0.1F, 0.9F, 1.7F, 0.5F, 0.01F};
  EXPECT_TRUE(Agrees(batch, shard.Forward(batch), spec, experts));
}

TEST_P(LocalExpertShardTest, CountsTheMemoryOfItsWeights) {
  ExpertSpec spec = GetParam().spec;
  // Multiples of the panel width: nothing is padded.
  spec.d_model = 48;
  spec.d_ff = 16;
  TestShard shard(spec, RandomExperts(spec, 3));
  EXPECT_EQ(shard.shard().num_experts(), 3);
  EXPECT_EQ(shard.shard().spec().d_ff, 16);
  const WeightsBytes bytes = shard.shard().weights();
  EXPECT_EQ(bytes[WeightFormat::kF32], 3 * 4 * spec.parameters());
  EXPECT_EQ(shard.shard().weights_bytes(), bytes[WeightFormat::kF32]);
}

INSTANTIATE_TEST_SUITE_P(
    All, LocalExpertShardTest,
    ::testing::Values(
        SpecCase{"SwiGlu", {.activation = {.activation = Activation::kSilu}}},
        SpecCase{"GeGluWithBias",
                 {.has_bias = true,
                  .activation = {.activation = Activation::kGelu}}},
        SpecCase{"ClampedGateWithOffset",
                 {.has_bias = true,
                  .activation = {.activation = Activation::kSilu,
                                 .beta = 1.702F,
                                 .limit = 0.7F,
                                 .up_offset = 1.0F}}},
        SpecCase{
            "ClassicRelu",
            {.gated = false, .activation = {.activation = Activation::kRelu}}},
        SpecCase{"ClassicGeluTanhWithBias",
                 {.gated = false,
                  .has_bias = true,
                  .activation = {.activation = Activation::kGeluTanh}}}),
    [](const auto& test) { return test.param.name; });

// Wider and taller than the blocks that the work is cut into.
constexpr ExpertSpec kWideSpec = {
    .d_model = 270, .d_ff = 280, .has_bias = true, .activation = {}};

TEST(LocalExpertShardBlocksTest, AgreesWithTheReferencePastOneBlock) {
  const auto experts = RandomExperts(kWideSpec, 2);
  TestShard shard(kWideSpec, experts, /*num_threads=*/2);
  const TestBatch batch(kWideSpec, {260, 3});
  EXPECT_TRUE(Agrees(batch, shard.Forward(batch), kWideSpec, experts));
}

TEST(LocalExpertShardBlocksTest, NumberOfThreadsDoesNotChangeTheBytes) {
  const auto experts = RandomExperts(kWideSpec, 3);
  const TestBatch batch(kWideSpec, {300, 0, 33});
  const std::vector<float> want = TestShard(kWideSpec, experts).Forward(batch);
  for (const int num_threads : {2, 5}) {
    TestShard shard(kWideSpec, experts, num_threads);
    EXPECT_EQ(shard.Forward(batch), want) << num_threads << " threads";
    EXPECT_EQ(shard.Forward(batch), want) << "again";
  }
}

TEST(LocalExpertShardBlocksTest, NumaNodesDoNotChangeTheBytes) {
  // Whatever CPUs there are: where a node has none of its own, it shares one.
  const std::vector<int> cpus = DetectNumaNodes("/nonexistent").front();
  const NumaNodes two = {{cpus.front()}, {cpus.back()}};
  const NumaNodes three = {{cpus.front()}, {cpus.back()}, {cpus.front()}};
  const ExpertSpec small = {.d_model = 8, .d_ff = 5, .activation = {}};
  ExpertSpec classic = kWideSpec;
  classic.gated = false;
  for (const ExpertSpec& spec : {kWideSpec, classic, small}) {
    const auto experts = RandomExperts(spec, 3);
    const TestBatch batch(spec, {70, 0, 1});
    TestShard alone(spec, experts);
    const std::vector<float> want = alone.Forward(batch);
    for (const auto& [num_threads, nodes] :
         std::vector<std::pair<int, NumaNodes>>{
             {2, two}, {3, two}, {3, three}, {8, three}}) {
      TestShard shard(spec, experts, num_threads, nodes);
      EXPECT_EQ(shard.Forward(batch), want);
      EXPECT_EQ(shard.shard().packed().size(), nodes.size());
      EXPECT_EQ(shard.shard().weights_bytes(), alone.shard().weights_bytes());
    }
  }
}

TEST(LocalExpertShardBlocksTest, WhoLoadsMayHaveOtherThreads) {
  const std::vector<int> cpus = DetectNumaNodes("/nonexistent").front();
  const NumaNodes two = {{cpus.front()}, {cpus.back()}};
  const auto experts = RandomExperts(kWideSpec, 3);
  const TestBatch batch(kWideSpec, {70, 0, 1});
  const std::vector<float> want = TestShard(kWideSpec, experts).Forward(batch);
  Executor executor(4, two);
  ExpertWorkspace workspace(&executor);
  const auto out_of = [&](Executor& loader) {
    const auto shard = LocalExpertShard::Load(
        kWideSpec, StoreExperts(kWideSpec, experts), WeightFormat::kF32, loader,
        executor.node_threads());
    EXPECT_EQ(shard->packed().size(), 2);
    std::vector<float> out(want.size());
    ExpertFailures failures;
    MOE_EXPECT_OK(shard->Forward(
        batch.batch(), workspace,
        Matrix(out.data(), batch.assignments(), batch.d_model), failures));
    return out;
  };
  Executor one_node(1);
  EXPECT_EQ(out_of(one_node), want);
  Executor fewer_threads(2, executor.nodes());
  EXPECT_EQ(out_of(fewer_threads), want);
}

TEST(LocalExpertShardRowsTest, NoRowsTouchNothing) {
  const ExpertSpec spec = {.d_model = 8, .d_ff = 5, .activation = {}};
  TestShard shard(spec, RandomExperts(spec, 3));
  EXPECT_THAT(shard.Forward(TestBatch(spec, {0, 0, 0})), ::testing::IsEmpty());
}

TEST(LocalExpertShardRowsTest, WritesRowsThatAreFurtherApartThanLong) {
  const ExpertSpec spec = {.d_model = 6, .d_ff = 5, .activation = {}};
  TestShard shard(spec, RandomExperts(spec, 2));
  const TestBatch batch(spec, {2, 1});
  const std::vector<float> want = shard.Forward(batch);
  std::vector<float> memory(3 * 9, 42.0F);
  shard.Forward(batch, Matrix(memory.data(), 3, 6, 9));
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(memory[i], i % 9 < 6 ? want[i / 9 * 6 + i % 9] : 42.0F) << i;
  }
}

TEST(LocalExpertShardRowsTest, SmallBatchesAfterLargeOnesAreUnaffected) {
  const ExpertSpec spec = {.d_model = 16, .d_ff = 12, .activation = {}};
  const auto experts = RandomExperts(spec, 2);
  const TestBatch small(spec, {1, 2});
  const std::vector<float> want = TestShard(spec, experts).Forward(small);
  TestShard shard(spec, experts);
  shard.Forward(TestBatch(spec, {40, 50}));
  EXPECT_EQ(shard.Forward(small), want);
}

TEST(LocalExpertShardWorkspaceTest, SeveralShardsShareOne) {
  const ExpertSpec small = {.d_model = 8, .d_ff = 5, .activation = {}};
  const ExpertSpec large = {.d_model = 24,
                            .d_ff = 30,
                            .gated = false,
                            .activation = {.activation = Activation::kGelu}};
  const auto small_experts = RandomExperts(small, 2);
  const auto large_experts = RandomExperts(large, 3);
  Executor executor(2);
  ExpertWorkspace workspace(&executor);
  const auto load = [&](const ExpertSpec& spec, const auto& experts) {
    return LocalExpertShard::Load(spec, StoreExperts(spec, experts),
                                  WeightFormat::kAuto, executor);
  };
  const auto first = load(small, small_experts);
  const auto second = load(large, large_experts);
  const TestBatch small_batch(small, {3, 4});
  const TestBatch large_batch(large, {5, 0, 6});
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::vector<float> out(7 * 8);
    ExpertFailures failures;
    MOE_ASSERT_OK(first->Forward(small_batch.batch(), workspace,
                                 Matrix(out.data(), 7, 8), failures));
    EXPECT_TRUE(Agrees(small_batch, out, small, small_experts));
    out.assign(11 * 24, 0.0F);
    MOE_ASSERT_OK(second->Forward(large_batch.batch(), workspace,
                                  Matrix(out.data(), 11, 24), failures));
    EXPECT_TRUE(Agrees(large_batch, out, large, large_experts));
  }
}

}  // namespace
}  // namespace moe
