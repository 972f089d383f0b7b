#include "experts/matmul_onednn.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "experts/base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/reference_moe.h"

namespace moe {
namespace {

// multiply() gives a square of `size`: the same from one thread and, over and
// over, from four at once.
void ExpectTheSameOnFourThreads(int64_t size,
                                absl::FunctionRef<void(Matrix)> multiply) {
  const auto run = [&](std::vector<float>& out) {
    out.resize(size * size);
    for (int repeat = 0; repeat < 20; ++repeat) {
      multiply(Matrix(out.data(), size, size));
    }
  };
  std::vector<float> want;
  run(want);
  std::vector<std::vector<float>> got(4);
  {
    std::vector<std::jthread> threads;
    for (auto& out : got) threads.emplace_back([&run, &out] { run(out); });
  }
  EXPECT_THAT(got, ::testing::Each(want));
}

// Compares each element with the sum in double precision. A float32 sum of k
// products, in any order, is off by at most k + 1 roundings of the sum of
// magnitudes.
void ExpectProduct(ConstMatrix a, ConstMatrix b, ConstMatrix out) {
  double worst = 0.0;
  std::string worst_text;
  for (int64_t i = 0; i < a.rows(); ++i) {
    for (int64_t j = 0; j < b.rows(); ++j) {
      double want = 0.0;
      double magnitude = 0.0;
      for (int64_t k = 0; k < a.cols(); ++k) {
        const double product = static_cast<double>(a.Row(i)[k]) * b.Row(j)[k];
        want += product;
        magnitude += std::fabs(product);
      }
      const double tolerance = static_cast<double>(a.cols() + 1) *
                               std::numeric_limits<float>::epsilon() *
                               magnitude;
      const double got = out.Row(i)[j];
      const double error = std::fabs(got - want);
      if (!(error <= tolerance) && !(error <= worst)) {
        worst = error;
        worst_text = absl::StrCat("worst at [", i, ", ", j, "]: got ", got,
                                  ", want ", want, " +- ", tolerance);
      }
    }
  }
  EXPECT_EQ(worst_text, "");
}

TEST(MatmulTransposedTest, AgreesWithDoublePrecisionAtTinyAndOddSizes) {
  const auto sizes = {1, 2, 3, 5, 8, 16, 17, 96};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : sizes) {
        SCOPED_TRACE(absl::StrCat(m, " x ", n, " x ", k));
        const auto a = RandomFloats(m * k, 1.0F, 1);
        const auto b = RandomFloats(n * k, 1.0F, 2);
        std::vector<float> out(static_cast<size_t>(m * n), -7.0F);
        MatmulTransposed({a.data(), m, k}, {b.data(), n, k},
                         {out.data(), m, n});
        ExpectProduct({a.data(), m, k}, {b.data(), n, k}, {out.data(), m, n});
      }
    }
  }
}

TEST(MatmulTransposedTest, LeavesWhatLiesBetweenTheRowsAlone) {
  constexpr int64_t kRows = 6;
  constexpr int64_t kCols = 5;
  constexpr int64_t kInner = 9;
  const auto a = RandomFloats(kRows * 11, 1.0F, 3);
  const auto b = RandomFloats(kCols * 13, 1.0F, 4);
  std::vector<float> memory(kRows * 8, 42.0F);
  const ConstMatrix a_view(a.data(), kRows, kInner, 11);
  const ConstMatrix b_view(b.data(), kCols, kInner, 13);
  const Matrix out(memory.data(), kRows, kCols, 8);
  MatmulTransposed(a_view, b_view, out);
  ExpectProduct(a_view, b_view, out);
  for (int64_t r = 0; r < kRows; ++r) {
    EXPECT_THAT(std::vector<float>(out.Row(r) + kCols, out.Row(r) + 8),
                ::testing::Each(42.0F));
  }
}

TEST(MatmulTransposedTest, EmptyProductsTouchNothing) {
  const std::vector<float> a(12, 1.0F);
  float guard = 42.0F;
  MatmulTransposed({a.data(), 0, 4}, {a.data(), 3, 4}, {&guard, 0, 3});
  MatmulTransposed({a.data(), 3, 4}, {a.data(), 0, 4}, {&guard, 3, 0});
  EXPECT_EQ(guard, 42.0F);
}

TEST(MatmulTransposedTest, OverwritesNaN) {
  const auto a = RandomFloats(4 * 8, 1.0F, 5);
  const auto b = RandomFloats(3 * 8, 1.0F, 6);
  std::vector<float> out(12, std::numeric_limits<float>::quiet_NaN());
  MatmulTransposed({a.data(), 4, 8}, {b.data(), 3, 8}, {out.data(), 4, 3});
  ExpectProduct({a.data(), 4, 8}, {b.data(), 3, 8}, {out.data(), 4, 3});
}

TEST(MatmulTransposedTest, KeepsNaNInItsRow) {
  auto a = RandomFloats(20 * 96, 1.0F, 7);
  const auto b = RandomFloats(30 * 96, 1.0F, 8);
  std::vector<float> want(20 * 30);
  MatmulTransposed({a.data(), 20, 96}, {b.data(), 30, 96},
                   {want.data(), 20, 30});
  a[7 * 96 + 50] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> got(20 * 30);
  MatmulTransposed({a.data(), 20, 96}, {b.data(), 30, 96},
                   {got.data(), 20, 30});
  for (size_t i = 0; i < got.size(); ++i) {
    if (i / 30 == 7) {
      EXPECT_TRUE(std::isnan(got[i]));
    } else {
      EXPECT_EQ(got[i], want[i]) << i;
    }
  }
}

TEST(MatmulTransposedTest, IsTheSameOnEveryThread) {
  constexpr int64_t kSize = 64;
  const auto a = RandomFloats(kSize * kSize, 1.0F, 9);
  const auto b = RandomFloats(kSize * kSize, 1.0F, 10);
  ExpectTheSameOnFourThreads(kSize, [&](Matrix out) {
    MatmulTransposed({a.data(), kSize, kSize}, {b.data(), kSize, kSize}, out);
  });
}

// A matrix of bfloat16, and the floats that its elements are.
struct BF16Matrix {
  BF16Matrix(int64_t num_rows, int64_t num_cols, uint32_t seed)
      : rows(num_rows),
        cols(num_cols),
        floats(RandomFloats(num_rows * num_cols, 1.0F, seed)) {
    for (float& value : floats) {
      bits.push_back(FloatToBF16(value));
      value = BF16ToFloat(bits.back());
    }
  }
  ConstMatrix wide() const { return {floats.data(), rows, cols}; }
  MatrixView<const uint16_t> view() const { return {bits.data(), rows, cols}; }

  int64_t rows;
  int64_t cols;
  std::vector<float> floats;
  std::vector<uint16_t> bits;
};

class MatmulTransposedBF16Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!OneDnnMultipliesBF16()) {
      GTEST_SKIP() << "oneDNN " << OneDnnVersion()
                   << " does not multiply bf16 on this CPU";
    }
  }
};

TEST_F(MatmulTransposedBF16Test, AgreesWithDoublePrecisionAtTinyAndOddSizes) {
  const auto sizes = {1, 2, 3, 17, 96};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : sizes) {
        SCOPED_TRACE(absl::StrCat(m, " x ", n, " x ", k));
        const BF16Matrix a(m, k, 1);
        const BF16Matrix b(n, k, 2);
        std::vector<float> out(static_cast<size_t>(m * n), -7.0F);
        MatmulTransposed(a.view(), b.view(), {out.data(), m, n});
        ExpectProduct(a.wide(), b.wide(), {out.data(), m, n});
      }
    }
  }
}

TEST_F(MatmulTransposedBF16Test, LeavesWhatLiesBetweenTheRowsAlone) {
  constexpr int64_t kRows = 6;
  constexpr int64_t kCols = 5;
  constexpr int64_t kInner = 9;
  const BF16Matrix a(kRows, 11, 3);
  const BF16Matrix b(kCols, 13, 4);
  std::vector<float> memory(kRows * 8, 42.0F);
  const Matrix out(memory.data(), kRows, kCols, 8);
  MatmulTransposed({a.bits.data(), kRows, kInner, 11},
                   {b.bits.data(), kCols, kInner, 13}, out);
  ExpectProduct({a.floats.data(), kRows, kInner, 11},
                {b.floats.data(), kCols, kInner, 13}, out);
  for (int64_t r = 0; r < kRows; ++r) {
    EXPECT_THAT(std::vector<float>(out.Row(r) + kCols, out.Row(r) + 8),
                ::testing::Each(42.0F));
  }
}

TEST_F(MatmulTransposedBF16Test, EmptyProductsTouchNothing) {
  const BF16Matrix a(3, 4, 5);
  float guard = 42.0F;
  MatmulTransposed(a.view().Rows(0, 0), a.view(), {&guard, 0, 3});
  MatmulTransposed(a.view(), a.view().Rows(0, 0), {&guard, 3, 0});
  EXPECT_EQ(guard, 42.0F);
}

TEST_F(MatmulTransposedBF16Test, IsTheSameOnEveryThread) {
  constexpr int64_t kSize = 64;
  const BF16Matrix a(kSize, kSize, 9);
  const BF16Matrix b(kSize, kSize, 10);
  ExpectTheSameOnFourThreads(
      kSize, [&](Matrix out) { MatmulTransposed(a.view(), b.view(), out); });
}

TEST(OneDnnVersionTest, IsAVersion) {
  EXPECT_THAT(OneDnnVersion(), ::testing::MatchesRegex("[0-9]+\\.[0-9.]+"));
}

}  // namespace
}  // namespace moe
