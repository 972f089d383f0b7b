#include "experts/kernels/run_experts.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "experts/kernels/x86.h"
#include "gtest/gtest.h"
#include "tests/experts/kernels/packed_experts.h"
#include "tests/testing/allocation_counter.h"

namespace moe {
namespace {

// Runs tasks one after the other, as worker 0.
void Serial(absl::Span<const int64_t> ends,
            absl::FunctionRef<void(int64_t, int)> fn) {
  for (int64_t task = 0; task < ends.back(); ++task) fn(task, 0);
}

// Runs tasks from the last one to the first on kThreads threads.
constexpr int kThreads = 3;
void Threaded(absl::Span<const int64_t> ends,
              absl::FunctionRef<void(int64_t, int)> fn) {
  std::atomic<int64_t> left{ends.back()};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int worker = 0; worker < kThreads; ++worker) {
    threads.emplace_back([&, worker] {
      for (int64_t i; (i = left.fetch_sub(1)) > 0;) fn(i - 1, worker);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A batch over the rows of `hidden_states` in order, counts[e] of them for
// expert e.
struct TestBatch {
  TestBatch(const std::vector<float>& hidden_states, int64_t d_model,
            const std::vector<int64_t>& counts) {
    offsets.push_back(0);
    for (const int64_t count : counts) {
      for (int64_t i = 0; i < count; ++i) {
        rows.push_back(static_cast<int32_t>(rows.size()));
      }
      offsets.push_back(static_cast<int32_t>(rows.size()));
    }
    batch.hidden_states = ConstMatrix(
        hidden_states.data(),
        static_cast<int64_t>(hidden_states.size()) / d_model, d_model);
    batch.offsets = offsets;
    batch.rows = rows;
  }
  std::vector<int32_t> offsets;
  std::vector<int32_t> rows;
  ExpertBatch batch;
};

std::vector<float> RunOnce(const Kernels& kernels, const ExpertSpec& spec,
                           absl::Span<const PackedExpert> experts,
                           const ExpertBatch& batch,
                           ParallelFor parallel_for = Serial) {
  ExpertRunner runner(kernels, kThreads);
  std::vector<float> out(batch.offsets.back() * spec.d_model, -1.0F);
  runner.Run(spec, experts, batch, parallel_for,
             Matrix(out.data(), batch.offsets.back(), spec.d_model));
  return out;
}

void ExpectWithin(absl::Span<const Bounded> want, absl::Span<const float> got) {
  ASSERT_EQ(want.size(), got.size());
  double worst = -1;
  size_t at = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double excess =
        std::fabs(got[i] - want[i].value) / (want[i].error + 0x1p-120);
    if (!(excess <= worst)) {
      worst = excess;
      at = i;
    }
  }
  EXPECT_LE(worst, 1) << "at " << at << " want " << want[at].value << " +- "
                      << want[at].error << " got " << got[at];
}

bool SameBytes(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Rows [first, first + count) of a row-major matrix.
absl::Span<const float> RowsOf(const std::vector<float>& matrix, int64_t cols,
                               int64_t first, int64_t count = 1) {
  return absl::MakeConstSpan(matrix).subspan(first * cols, count * cols);
}

std::vector<float> CopyOf(absl::Span<const float> values) {
  return {values.begin(), values.end()};
}

ExpertSpec Spec(int64_t d_model, int64_t d_ff, bool has_bias = false) {
  ExpertSpec spec;
  spec.d_model = d_model;
  spec.d_ff = d_ff;
  spec.has_bias = has_bias;
  return spec;
}

struct SweepCase {
  WeightFormat format;
  int64_t d_model;
  int64_t d_ff;
};

// Right and slow.
bool IsPortable(const Kernels& kernels) {
  return &kernels == AllKernels().back();
}

class RunExpertsSweepTest : public ::testing::TestWithParam<SweepCase> {};

// Each number of rows goes through other kernels, tiles and tails.
TEST_P(RunExpertsSweepTest, AgreesWithTheReferenceOnEveryInstructionSet) {
  constexpr int64_t kMaxTokens = 33;
  const ExpertSpec spec = Spec(GetParam().d_model, GetParam().d_ff);
  TestExpert expert(spec, GetParam().format, /*seed=*/1);
  expert.TakePackedWeights();
  const auto hidden = RandomFloats(kMaxTokens * spec.d_model, 1.0F, 99);
  // Only some rows of large shapes are compared with the reference, and the
  // portable kernels, slow as they are, run only those.
  const bool large = spec.d_model * spec.d_ff > 1'000'000;
  const auto is_sampled = [&](int64_t row) { return !large || row % 16 == 0; };
  std::vector<std::vector<Bounded>> want(kMaxTokens);
  for (int64_t row = 0; row < kMaxTokens; ++row) {
    if (!is_sampled(row)) continue;
    want[row] =
        ReferenceExpert(spec, expert, &hidden[row * spec.d_model], 1.0F);
  }
  std::vector<float> best;
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    const bool sampled_only = large && IsPortable(*kernels);
    std::vector<float> alone(kMaxTokens * spec.d_model);
    for (int64_t row = 0; row < kMaxTokens; ++row) {
      if (sampled_only && !is_sampled(row)) continue;
      const auto hidden_row = CopyOf(RowsOf(hidden, spec.d_model, row));
      const TestBatch one(hidden_row, spec.d_model, {1});
      const auto out = RunOnce(*kernels, spec, {&expert.packed, 1}, one.batch);
      if (is_sampled(row)) ExpectWithin(want[row], out);
      std::copy(out.begin(), out.end(), &alone[row * spec.d_model]);
    }
    if (kernels->same_bytes_everywhere) {
      if (best.empty()) best = alone;
      EXPECT_TRUE(SameBytes(best, alone)) << "differs from the best";
    }
    if (sampled_only) continue;
    for (int64_t tokens = 0; tokens <= kMaxTokens; ++tokens) {
      const TestBatch batch(hidden, spec.d_model, {tokens});
      EXPECT_TRUE(
          SameBytes(RowsOf(alone, spec.d_model, 0, tokens),
                    RunOnce(*kernels, spec, {&expert.packed, 1}, batch.batch)))
          << tokens << " rows";
    }
  }
}

std::vector<SweepCase> SweepCases() {
  std::vector<SweepCase> cases;
  for (const WeightFormat format : kPackedFormats) {
    for (const auto& [d_model, d_ff] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                  {7, 3},
                                                  {17, 33},
                                                  {96, 40},
                                                  {160, 1408},
                                                  {2880, 40},
                                                  {2880, 1408}}) {
      cases.push_back({format, d_model, d_ff});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, RunExpertsSweepTest,
                         ::testing::ValuesIn(SweepCases()),
                         [](const auto& test) {
                           return absl::StrCat(
                               WeightFormatName(test.param.format), "_",
                               test.param.d_model, "x", test.param.d_ff);
                         });

class RunExpertsFormatTest : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(RunExpertsFormatTest, BytesOfARowDoNotDependOnTheRowCount) {
  constexpr int64_t kMaxTokens = 300;
  const ExpertSpec spec = Spec(288, 72);
  const TestExpert expert(spec, GetParam(), /*seed=*/2);
  const auto hidden = RandomFloats(kMaxTokens * spec.d_model, 1.0F, 98);
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    const TestBatch whole(hidden, spec.d_model, {kMaxTokens});
    const auto all = RunOnce(*kernels, spec, {&expert.packed, 1}, whole.batch);
    for (int64_t tokens = 1; tokens < kMaxTokens;
         tokens += IsPortable(*kernels) ? 37 : 1) {
      const TestBatch batch(hidden, spec.d_model, {tokens});
      ASSERT_TRUE(
          SameBytes(RowsOf(all, spec.d_model, 0, tokens),
                    RunOnce(*kernels, spec, {&expert.packed, 1}, batch.batch)))
          << tokens << " rows";
    }
  }
}

TEST_P(RunExpertsFormatTest, VnniOfAnyWidthAndAmxFormTheSameIntegers) {
  if (GetParam() == WeightFormat::kBF16) {
    GTEST_SKIP() << "bf16 has another arithmetic with AMX";
  }
  std::vector<const Kernels*> tables;
  for (const Kernels* kernels : AllKernels()) {
    for (const absl::string_view isa : {"AMX", "VNNI", "AVX_VNNI"}) {
      if (kernels->isa == isa) tables.push_back(kernels);
    }
  }
  if (tables.size() < 2) GTEST_SKIP() << "this CPU does not have two of them";
  const ExpertSpec spec = Spec(288, 72);
  const TestExpert expert(spec, GetParam(), /*seed=*/5);
  const auto hidden = RandomFloats(40 * spec.d_model, 1.0F, 94);
  for (const int64_t tokens : {1, 5, 6, 40}) {
    const TestBatch batch(hidden, spec.d_model, {tokens});
    const auto want =
        RunOnce(*tables[0], spec, {&expert.packed, 1}, batch.batch);
    for (const Kernels* table : tables) {
      EXPECT_TRUE(SameBytes(
          want, RunOnce(*table, spec, {&expert.packed, 1}, batch.batch)))
          << table->isa << ", " << tokens << " rows";
    }
  }
}

#if HWY_ARCH_X86_64
// With strips and panels that this CPU has no use for.
TEST_P(RunExpertsFormatTest, BytesDoNotDependOnWhichCpuATableIsTunedFor) {
  X86Features zen4;
  zen4.amd = true;
  zen4.zen4 = true;
  X86Features zen5;
  zen5.amd = true;
  const std::pair<const char*, X86Features> cpus[] = {
      {"Intel", {}}, {"Zen 4", zen4}, {"Zen 5", zen5}};
  const ExpertSpec spec = Spec(288, 72);
  const TestExpert expert(spec, GetParam(), /*seed=*/6);
  const auto hidden = RandomFloats(60 * spec.d_model, 1.0F, 96);
  int tables = 0;
  for (const Kernels* table : AllKernels()) {
    if (table->isa != "AVX3" && table->isa != "VNNI" && table->isa != "AMX") {
      continue;
    }
    ++tables;
    for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 11, 12, 60}) {
      const TestBatch batch(hidden, spec.d_model, {tokens});
      const auto want = RunOnce(*table, spec, {&expert.packed, 1}, batch.batch);
      for (const auto& [name, cpu] : cpus) {
        Kernels tuned = *table;
        // Gives back what this CPU's own tuning took.
        if (table->isa == "VNNI") UseVnni(tuned);
        TuneForCpu(cpu, tuned);
        EXPECT_TRUE(SameBytes(
            want, RunOnce(tuned, spec, {&expert.packed, 1}, batch.batch)))
            << table->isa << " for " << name << ", " << tokens << " rows";
      }
    }
  }
  if (tables == 0) GTEST_SKIP() << "this CPU does not have AVX-512";
}
#endif

TEST_P(RunExpertsFormatTest, BytesDoNotDependOnThreadsOrCompany) {
  const ExpertSpec spec = Spec(160, 200, /*has_bias=*/true);
  std::vector<std::unique_ptr<TestExpert>> owned;
  std::vector<PackedExpert> experts;
  for (int e = 0; e < 5; ++e) {
    owned.push_back(std::make_unique<TestExpert>(spec, GetParam(), e + 10));
    experts.push_back(owned.back()->packed);
  }
  const auto hidden = RandomFloats(240 * spec.d_model, 1.0F, 97);
  const TestBatch batch(hidden, spec.d_model, {1, 0, 230, 2, 7});
  const Kernels& kernels = BestKernels();
  const auto serial = RunOnce(kernels, spec, experts, batch.batch);
  EXPECT_TRUE(SameBytes(
      serial, RunOnce(kernels, spec, experts, batch.batch, Threaded)));
  for (size_t e = 0; e < experts.size(); ++e) {
    for (int32_t row = batch.offsets[e]; row < batch.offsets[e + 1]; ++row) {
      const auto hidden_row = CopyOf(RowsOf(hidden, spec.d_model, row));
      const TestBatch one(hidden_row, spec.d_model, {1});
      EXPECT_TRUE(
          SameBytes(RowsOf(serial, spec.d_model, row),
                    RunOnce(kernels, spec, {&experts[e], 1}, one.batch)));
    }
  }
}

// The panels [first, end) of a matrix.
PackedMatrix SliceOf(const PackedMatrix& matrix, int64_t first, int64_t end) {
  return {.layout = matrix.layout,
          .data = matrix.Panel(first),
          .panels = end - first,
          .first_panel = first};
}

TEST_P(RunExpertsFormatTest, SlicesGiveTheBytesOfTheWhole) {
  const ExpertSpec spec = Spec(160, 200, /*has_bias=*/true);
  constexpr int kExperts = 3;
  std::vector<std::unique_ptr<TestExpert>> owned;
  std::vector<PackedExpert> experts;
  for (int e = 0; e < kExperts; ++e) {
    owned.push_back(std::make_unique<TestExpert>(spec, GetParam(), e + 10));
    experts.push_back(owned.back()->packed);
  }
  // Cuts of 26 panels and of 10: two nodes have some, and one of three has none
  // of the second matrix.
  const std::vector<std::vector<int64_t>> up_cuts = {{0, 12, 26},
                                                     {0, 4, 16, 26}};
  const std::vector<std::vector<int64_t>> down_cuts = {{0, 4, 10},
                                                       {0, 0, 8, 10}};
  const auto hidden = RandomFloats(120 * spec.d_model, 1.0F, 97);
  const TestBatch batch(hidden, spec.d_model, {1, 0, 119});
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    const auto whole = RunOnce(*kernels, spec, experts, batch.batch);
    for (size_t cuts = 0; cuts < up_cuts.size(); ++cuts) {
      const std::vector<int64_t>& up = up_cuts[cuts];
      const std::vector<int64_t>& down = down_cuts[cuts];
      std::vector<PackedExpert> slices;
      for (size_t node = 0; node + 1 < up.size(); ++node) {
        for (const PackedExpert& expert : experts) {
          slices.push_back(
              {.up = SliceOf(expert.up, up[node], up[node + 1]),
               .down = SliceOf(expert.down, down[node], down[node + 1]),
               .up_bias = expert.up_bias + up[node] * kPanelWidth,
               .down_bias = expert.down_bias + down[node] * kPanelWidth});
        }
      }
      EXPECT_TRUE(
          SameBytes(whole, RunOnce(*kernels, spec, slices, batch.batch)));
      EXPECT_TRUE(SameBytes(
          whole, RunOnce(*kernels, spec, slices, batch.batch, Threaded)));
    }
  }
}

TEST_P(RunExpertsFormatTest, NaNAndInfinityStayInTheirRow) {
  const ExpertSpec spec = Spec(96, 40);
  const TestExpert expert(spec, GetParam(), /*seed=*/3);
  const auto clean = RandomFloats(14 * spec.d_model, 1.0F, 96);
  auto dirty = clean;
  dirty[3 * spec.d_model + 5] = std::numeric_limits<float>::quiet_NaN();
  dirty[9 * spec.d_model + 95] = std::numeric_limits<float>::infinity();
  const TestBatch clean_batch(clean, spec.d_model, {14});
  const TestBatch dirty_batch(dirty, spec.d_model, {14});
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    const auto want =
        RunOnce(*kernels, spec, {&expert.packed, 1}, clean_batch.batch);
    const auto got =
        RunOnce(*kernels, spec, {&expert.packed, 1}, dirty_batch.batch);
    for (int64_t row = 0; row < 14; ++row) {
      const auto out = RowsOf(got, spec.d_model, row);
      if (row == 3 || row == 9) {
        for (const float value : out) EXPECT_TRUE(std::isnan(value));
      } else {
        EXPECT_TRUE(SameBytes(RowsOf(want, spec.d_model, row), out));
      }
    }
  }
}

TEST_P(RunExpertsFormatTest, GathersRowsAndScalesThem) {
  const ExpertSpec spec = Spec(100, 50, /*has_bias=*/true);
  std::vector<std::unique_ptr<TestExpert>> owned;
  std::vector<PackedExpert> experts;
  for (int e = 0; e < 3; ++e) {
    owned.push_back(std::make_unique<TestExpert>(spec, GetParam(), e + 20));
    owned.back()->TakePackedWeights();
    experts.push_back(owned.back()->packed);
  }
  const auto hidden = RandomFloats(6 * spec.d_model, 1.0F, 95);
  const std::vector<int32_t> offsets = {0, 1, 5, 8};
  const std::vector<int32_t> rows = {5, 0, 2, 3, 5, 1, 2, 4};
  const std::vector<float> scales = {1, 0.5F, 2, 0.25F, 3, 1, 0, -1};
  for (const bool scaled : {false, true}) {
    ExpertBatch batch;
    batch.hidden_states = ConstMatrix(hidden.data(), 6, spec.d_model);
    batch.offsets = offsets;
    batch.rows = rows;
    if (scaled) batch.input_scales = scales;
    for (const Kernels* kernels : AllKernels()) {
      SCOPED_TRACE(std::string(kernels->isa));
      const auto out = RunOnce(*kernels, spec, experts, batch);
      for (int e = 0; e < 3; ++e) {
        for (int32_t i = offsets[e]; i < offsets[e + 1]; ++i) {
          ExpectWithin(
              ReferenceExpert(spec, *owned[e], &hidden[rows[i] * spec.d_model],
                              scaled ? scales[i] : 1.0F),
              RowsOf(out, spec.d_model, i));
        }
      }
    }
  }
}

// What large models have: a few activations far above all others. And the ends
// of what floats hold.
TEST_P(RunExpertsFormatTest, ActivationsOfVeryDifferentSizes) {
  ExpertSpec spec = Spec(256, 32);
  spec.gated = false;
  spec.activation.activation = Activation::kIdentity;
  TestExpert expert(spec, GetParam(), /*seed=*/5);
  expert.TakePackedWeights();
  constexpr int64_t kRows = 6;
  auto hidden = RandomFloats(kRows * spec.d_model, 1.0F, 94);
  const auto row = [&](int64_t r) { return &hidden[r * spec.d_model]; };
  row(0)[7] = 3000.0F;
  row(1)[130] = -1e6F;
  for (int64_t k = 0; k < spec.d_model; ++k) {
    row(2)[k] *= 1e-30F;
    row(3)[k] *= 1e30F;
    row(4)[k] = 0;
  }
  row(4)[255] = 1.0F;
  // The largest integer of 24 bits, and its neighbours.
  for (int64_t k = 0; k < spec.d_model; ++k) {
    row(5)[k] = 16777215.0F - static_cast<float>(k);
  }
  const TestBatch batch(hidden, spec.d_model, {kRows});
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    const auto out = RunOnce(*kernels, spec, {&expert.packed, 1}, batch.batch);
    for (int64_t r = 0; r < kRows; ++r) {
      SCOPED_TRACE(r);
      ExpectWithin(ReferenceExpert(spec, expert, row(r), 1.0F),
                   RowsOf(out, spec.d_model, r));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunExpertsFormatTest,
                         ::testing::ValuesIn(kPackedFormats),
                         [](const auto& test) {
                           return std::string(WeightFormatName(test.param));
                         });

struct ExpertKind {
  std::string name;
  ExpertSpec spec;
};

class RunExpertsKindTest : public ::testing::TestWithParam<ExpertKind> {};

TEST_P(RunExpertsKindTest, AgreesWithTheReference) {
  const ExpertSpec& spec = GetParam().spec;
  TestExpert expert(spec, WeightFormat::kBF16, /*seed=*/4);
  expert.TakePackedWeights();
  const auto hidden = RandomFloats(20 * spec.d_model, 1.0F, 94);
  const TestBatch batch(hidden, spec.d_model, {20});
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    const auto out = RunOnce(*kernels, spec, {&expert.packed, 1}, batch.batch);
    for (int64_t row = 0; row < 20; ++row) {
      ExpectWithin(
          ReferenceExpert(spec, expert, &hidden[row * spec.d_model], 1.0F),
          RowsOf(out, spec.d_model, row));
    }
  }
}

std::vector<ExpertKind> ExpertKinds() {
  std::vector<ExpertKind> kinds;
  const auto add = [&](const char* name, int64_t d_model, int64_t d_ff,
                       Activation activation) -> ExpertSpec& {
    ExpertKind kind;
    kind.name = name;
    kind.spec.d_model = d_model;
    kind.spec.d_ff = d_ff;
    kind.spec.activation.activation = activation;
    kinds.push_back(kind);
    return kinds.back().spec;
  };
  ExpertSpec& gpt_oss = add("GptOss", 90, 70, Activation::kSilu);
  gpt_oss.has_bias = true;
  gpt_oss.activation.beta = 1.702F;
  gpt_oss.activation.limit = 0.75F;
  gpt_oss.activation.up_offset = 1.0F;
  add("Bilinear", 64, 48, Activation::kIdentity);
  add("GeGlu", 64, 56, Activation::kGelu);
  add("ReGlu", 64, 56, Activation::kRelu);
  add("Glu", 16, 16, Activation::kSigmoid);
  ExpertSpec& classic = add("ClassicGeluTanh", 72, 200, Activation::kGeluTanh);
  classic.gated = false;
  classic.has_bias = true;
  add("ClassicRelu2", 33, 81, Activation::kRelu2).gated = false;
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(All, RunExpertsKindTest,
                         ::testing::ValuesIn(ExpertKinds()),
                         [](const auto& test) { return test.param.name; });

struct GroupCase {
  WeightFormat format;
  int64_t group;
  DType scale_dtype;
  bool zero_points = false;
};

class GroupsTest : public ::testing::TestWithParam<GroupCase> {};

// Checkpoints bring groups of many sizes.
TEST_P(GroupsTest, OfAnySizeAgreeWithTheReference) {
  constexpr int64_t kN = 40;
  constexpr int64_t kK = 330;
  PackedLayout layout = PackedLayout::For(GetParam().format, kN, kK);
  layout.group = GetParam().group;
  layout.scale_dtype = GetParam().scale_dtype;
  layout.zero_points = GetParam().zero_points;
  AlignedBuffer<uint8_t> data(layout.bytes() + kPackedSlack);
  const int64_t codes = layout.steps_per_line() == 8 ? 16 : 120;
  for (int64_t p = 0; p < layout.panels(); ++p) {
    PackCodedPanel(
        layout,
        CodeReaderOf(layout,
                     [&](int64_t row, int64_t col) {
                       return static_cast<uint8_t>((row * 31 + col * 17) %
                                                   codes);
                     }),
        [&](int64_t row, int64_t col) {
          return std::ldexp(
              1.0F, static_cast<int>((row + col / layout.group) % 5) - 2);
        },
        [&](int64_t row, int64_t col) {
          return static_cast<int>((row * 3 + col / layout.group) % 17);
        },
        p, data.data() + p * layout.panel_bytes());
  }
  const PackedMatrix matrix{layout, data.data(), layout.panels()};
  constexpr int64_t kRows = 21;
  const auto x = RandomFloats(kRows * kK, 1.0F, 91);
  for (const Kernels* kernels : AllKernels()) {
    SCOPED_TRACE(std::string(kernels->isa));
    ExpertRunner runner(*kernels, 1);
    std::vector<float> out(kRows * kN);
    runner.Multiply(matrix, /*bias=*/nullptr, ConstMatrix(x.data(), kRows, kK),
                    Serial, Matrix(out.data(), kRows, kN));
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<Bounded> row(kK);
      for (int64_t k = 0; k < kK; ++k) row[k] = {x[r * kK + k], 0};
      std::vector<Bounded> want(kN);
      for (int64_t n = 0; n < kN; ++n) {
        std::vector<float> weights(kK);
        for (int64_t k = 0; k < kK; ++k) {
          weights[k] = UnpackedElement(layout, matrix.Panel(n / kPanelWidth),
                                       n % kPanelWidth, k);
        }
        want[n] = ReferenceDot(weights.data(), row, 0);
      }
      ExpectWithin(want, RowsOf(out, kN, r));
    }
  }
}

std::vector<GroupCase> GroupCases() {
  std::vector<GroupCase> cases;
  for (const int64_t group : {32, 64, 96, 128, 256, 384}) {
    for (const WeightFormat format :
         {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kFp8,
          WeightFormat::kMxfp4}) {
      for (const DType dtype :
           {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0}) {
        cases.push_back({format, group, dtype});
        if (format == WeightFormat::kInt4) {
          cases.push_back({format, group, dtype, /*zero_points=*/true});
        }
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, GroupsTest, ::testing::ValuesIn(GroupCases()),
                         [](const auto& test) {
                           return absl::StrCat(
                               WeightFormatName(test.param.format), "_",
                               test.param.group, "_",
                               std::string(DTypeName(test.param.scale_dtype)),
                               test.param.zero_points ? "_ZeroPoints" : "");
                         });

struct ErrorLimit {
  WeightFormat format;
  double limit;
};

class QuantisationErrorTest : public ::testing::TestWithParam<ErrorLimit> {};

// The error of the output of one SwiGLU expert with Gaussian weights, all three
// projections quantised, relative to the output's root mean square.
TEST_P(QuantisationErrorTest, StaysBelowTheLimitOfTheFormat) {
  const ExpertSpec spec = Spec(512, 384);
  const TestExpert exact(spec, WeightFormat::kF32, /*seed=*/5);
  const TestExpert quantised(spec, GetParam().format, /*seed=*/5);
  const auto hidden = RandomFloats(32 * spec.d_model, 1.0F, 93);
  const TestBatch batch(hidden, spec.d_model, {32});
  const auto want =
      RunOnce(BestKernels(), spec, {&exact.packed, 1}, batch.batch);
  const auto got =
      RunOnce(BestKernels(), spec, {&quantised.packed, 1}, batch.batch);
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(got[i] - want[i], 2);
    size += std::pow(want[i], 2);
  }
  const double relative = std::sqrt(error / size);
  RecordProperty("relative_rms_error", std::to_string(relative));
  EXPECT_LE(relative, GetParam().limit);
  EXPECT_GT(relative, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantisationErrorTest,
    ::testing::Values(ErrorLimit{WeightFormat::kBF16, 0.004},
                      ErrorLimit{WeightFormat::kF16, 0.0005},
                      ErrorLimit{WeightFormat::kFp8, 0.05},
                      ErrorLimit{WeightFormat::kInt8, 0.013},
                      ErrorLimit{WeightFormat::kMxfp4, 0.25},
                      ErrorLimit{WeightFormat::kInt4, 0.14}),
    [](const auto& test) {
      return std::string(WeightFormatName(test.param.format));
    });

TEST(ExpertRunnerTest, AllocatesNothingOnceWarm) {
  const ExpertSpec spec = Spec(160, 96);
  const TestExpert a(spec, WeightFormat::kInt4, 6);
  const TestExpert b(spec, WeightFormat::kInt4, 7);
  const std::vector<PackedExpert> experts = {a.packed, b.packed};
  const auto hidden = RandomFloats(64 * spec.d_model, 1.0F, 92);
  const TestBatch big(hidden, spec.d_model, {40, 24});
  const TestBatch small(hidden, spec.d_model, {0, 1});
  std::vector<float> out(64 * spec.d_model);
  ExpertRunner runner(BestKernels(), 1);
  const auto run = [&](const TestBatch& batch) {
    runner.Run(spec, experts, batch.batch, Serial,
               Matrix(out.data(), batch.batch.offsets.back(), spec.d_model));
  };
  run(big);
  const int64_t allocations_before = AllocationCount();
  const auto bytes_before = mallinfo2().uordblks;
  run(small);
  run(big);
  run(small);
  const auto bytes_after = mallinfo2().uordblks;
  EXPECT_EQ(AllocationCount() - allocations_before, 0);
  EXPECT_EQ(bytes_after, bytes_before);
}

TEST(ExpertRunnerTest, TasksOfANodeAreThoseOfItsSlices) {
  const ExpertSpec spec = Spec(128, 96);
  const TestExpert a(spec, WeightFormat::kF32, 8);
  const TestExpert b(spec, WeightFormat::kF32, 9);
  std::vector<PackedExpert> slices;
  for (const int64_t node : {0, 1}) {
    for (const TestExpert* expert : {&a, &b}) {
      slices.push_back(
          {.up = SliceOf(expert->packed.up, node * 8, node == 0 ? 8 : 12),
           .down = SliceOf(expert->packed.down, node * 4, node * 4 + 4)});
    }
  }
  ExpertRunner runner(BestKernels(), 2);
  const auto hidden = RandomFloats(2 * spec.d_model, 1.0F, 92);
  const TestBatch batch(hidden, spec.d_model, {1, 1});
  std::vector<float> out(2 * spec.d_model);
  // With a row each, a task is a unit of panels.
  std::vector<std::vector<int64_t>> asked;
  const auto note = [&](absl::Span<const int64_t> ends,
                        absl::FunctionRef<void(int64_t, int)> fn) {
    if (ends.size() > 1) asked.emplace_back(ends.begin(), ends.end());
    Serial(ends, fn);
  };
  runner.Run(spec, slices, batch.batch, note,
             Matrix(out.data(), 2, spec.d_model));
  EXPECT_EQ(asked, (std::vector<std::vector<int64_t>>{{4, 6}, {2, 4}}));
}

TEST(ExpertRunnerTest, ZeroExpertsAndZeroRowsDoNothing) {
  const ExpertSpec spec = Spec(16, 16);
  const TestExpert expert(spec, WeightFormat::kF32, 8);
  ExpertRunner runner(BestKernels(), 1);
  int64_t tasks = 0;
  const auto count = [&](absl::Span<const int64_t> ends,
                         absl::FunctionRef<void(int64_t, int)> /*fn*/) {
    tasks += ends.back();
  };
  ExpertBatch batch;
  batch.hidden_states = ConstMatrix(nullptr, 0, 16);
  const std::vector<int32_t> none = {0};
  batch.offsets = none;
  runner.Run(spec, {}, batch, count, Matrix(nullptr, 0, 16));
  const std::vector<int32_t> empty = {0, 0};
  batch.offsets = empty;
  runner.Run(spec, {&expert.packed, 1}, batch, count, Matrix(nullptr, 0, 16));
  EXPECT_EQ(tasks, 0);
}

}  // namespace
}  // namespace moe
