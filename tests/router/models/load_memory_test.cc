// How much memory a model takes while it is loaded.

#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experts/executor.h"
#include "gtest/gtest.h"
#include "router/models/model.h"
#include "router/models/model_spec.h"
#include "tests/testing/tensors.h"

namespace moe {
namespace {

constexpr int kLayers = 4;
constexpr int kExperts = 8;
constexpr int64_t kDModel = 512;
constexpr int64_t kDFf = 1024;

// A Mixtral of 101 MB in bf16.
TestCheckpoint MakeCheckpoint() {
  const std::vector<uint16_t> values(kDModel * kDFf, FloatToBF16(0.25F));
  std::vector<TestTensor> tensors;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string moe =
        absl::StrCat("model.layers.", layer, ".block_sparse_moe.");
    tensors.push_back(FloatTensor(
        absl::StrCat(moe, "gate.weight"), DType::kF32, {kExperts, kDModel},
        std::vector<float>(kExperts * kDModel, 0.5F)));
    for (int e = 0; e < kExperts; ++e) {
      const auto add = [&](const char* name, int64_t rows, int64_t cols) {
        tensors.push_back(
            RawTensor(absl::StrCat(moe, "experts.", e, ".", name, ".weight"),
                      DType::kBF16, {rows, cols}, values));
      };
      add("w1", kDFf, kDModel);
      add("w2", kDModel, kDFf);
      add("w3", kDFf, kDModel);
    }
  }
  return TestCheckpoint(
      tensors, absl::StrCat(R"({"model_type": "mixtral", "hidden_act": "silu",
          "hidden_size": )",
                            kDModel, R"(, "intermediate_size": )", kDFf,
                            R"(, "num_hidden_layers": )", kLayers,
                            R"(, "num_local_experts": )", kExperts,
                            R"(, "num_experts_per_tok": 2})"));
}

// Bytes of memory that this process may write to and shares with nobody: all
// it takes but the mapped files.
int64_t PrivateBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmData:") status >> kilobytes;
  }
  return kilobytes * 1024;
}

class Loader {
 public:
  explicit Loader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    // Threads with their stacks are there before the model.
    executor_.ParallelFor(64, [](int64_t, int) {});
  }

  std::unique_ptr<Model> Load(WeightFormat format) {
    auto specs = DescribeModels(checkpoint_);
    MOE_CHECK(specs.ok() && specs->size() == 1);
    LoadOptions options;
    options.weight_format = format;
    auto model = LoadModel(checkpoint_, specs->front(), options, executor_,
                           [](const LoadProgress&) {});
    MOE_CHECK(model.ok());
    return *std::move(model);
  }

 private:
  const Checkpoint& checkpoint_;
  Executor executor_{2};
};

constexpr int kNoMemory = 2;

// Loads with no more memory than the model's 1.1-fold and one layer. Exits with
// 0, or with kNoMemory if that is not enough.
[[noreturn]] void LoadWithin(const Checkpoint& checkpoint, WeightFormat format,
                             int64_t model_bytes) {
  Loader loader(checkpoint);
  const auto limit = static_cast<rlim_t>(
      PrivateBytes() + model_bytes + model_bytes / 10 + model_bytes / kLayers);
  const rlimit limits{limit, limit};
  MOE_CHECK(setrlimit(RLIMIT_DATA, &limits) == 0);
  try {
    const auto model = loader.Load(format);
    std::exit(model->weights_bytes() == model_bytes ? 0 : 1);
  } catch (const std::bad_alloc&) {
    std::exit(kNoMemory);
  }
}

using LoadMemoryDeathTest = ::testing::TestWithParam<WeightFormat>;

TEST_P(LoadMemoryDeathTest, IsThatOfTheModelAndOneLayer) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "skipped: the address sanitizer takes memory of its own";
#endif
  const TestCheckpoint checkpoint = MakeCheckpoint();
  const auto start = std::chrono::steady_clock::now();
  const int64_t bytes = Loader(*checkpoint).Load(GetParam())->weights_bytes();
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - start;
  std::printf("loaded %.0f MB at %.2f GB/s\n",
              static_cast<double>(bytes) * 1e-6,
              static_cast<double>(bytes) * 1e-9 / time.count());
  EXPECT_EXIT(LoadWithin(*checkpoint, GetParam(), bytes),
              ::testing::ExitedWithCode(0), "");
  // The limit is one: half of the model does not fit.
  EXPECT_EXIT(LoadWithin(*checkpoint, GetParam(), bytes / 2),
              ::testing::ExitedWithCode(kNoMemory), "");
}

INSTANTIATE_TEST_SUITE_P(All, LoadMemoryDeathTest,
                         ::testing::Values(WeightFormat::kAuto,
                                           WeightFormat::kF32,
                                           WeightFormat::kInt8),
                         [](const auto& test) {
                           return std::string(WeightFormatName(test.param));
                         });

}  // namespace
}  // namespace moe
