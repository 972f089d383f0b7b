// What the table of families makes of checkpoints: other layouts and names of
// the same parameters, what it refuses, and the families that have no recorded
// vectors.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/models/family.h"
#include "router/models/model_spec.h"
#include "tests/testing/models.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// ---- The same model, stored otherwise ---------------------------------------

// All experts of a layer in one tensor, gate_proj and up_proj joined, under the
// names that release 5 of the transformers library has in memory.
Parts Fused(const Parts& parts) {
  Parts fused;
  fused.config = parts.config;
  // By the name of the result: its experts' tensors, [expert][gate, up] or
  // [expert][down].
  std::map<std::string, std::map<int, std::map<int, TestTensor>>> stacks;
  for (const TestTensor& tensor : parts.tensors) {
    const auto at = tensor.name.find(".experts.");
    if (at == std::string::npos || absl::StrContains(tensor.name, "mtp.")) {
      fused.tensors.push_back(tensor);
      continue;
    }
    const std::vector<std::string> rest = absl::StrSplit(
        tensor.name.substr(at + absl::string_view(".experts.").size()), '.');
    int expert = 0;
    MOE_CHECK(absl::SimpleAtoi(rest[0], &expert));
    const std::string& name = rest[1];
    const bool down = name == "down_proj" || name == "w2";
    const bool up = name == "up_proj" || name == "w3";
    const bool classic = absl::StrContains(tensor.name, ".mixer.");
    stacks[absl::StrCat(tensor.name.substr(0, at), ".experts.",
                        down      ? "down_proj"
                        : classic ? "up_proj"
                                  : "gate_up_proj")][expert][up ? 1 : 0] =
        tensor;
  }
  for (const auto& [name, experts] : stacks) {
    TestTensor stack{.name = name, .dtype = {}, .shape = {}, .bytes = {}};
    for (const auto& [expert, projections] : experts) {
      for (const auto& [order, tensor] : projections) {
        stack.dtype = tensor.dtype;
        stack.shape = {
            static_cast<int64_t>(experts.size()),
            tensor.shape[0] * static_cast<int64_t>(projections.size()),
            tensor.shape[1]};
        stack.bytes.insert(stack.bytes.end(), tensor.bytes.begin(),
                           tensor.bytes.end());
      }
    }
    fused.tensors.push_back(std::move(stack));
  }
  return fused;
}

class FusedTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FusedTest, AnswersLikeSeparateExperts) {
  const Parts parts = GoldenParts(absl::StrCat(GetParam(), "-a"));
  Parts fused = Fused(parts);
  fused.Rename("block_sparse_moe", "mlp");
  if (parts.config["model_type"] == "phimoe") {
    fused.Rename("mlp.gate.", "mlp.router.");
  }
  if (parts.config["model_type"] == "ernie4_5_moe") {
    fused.Rename("mlp.moe_statics.", "mlp.gate.moe_statics.");
  }
  ASSERT_LT(fused.tensors.size(), parts.tensors.size());
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*fused.Open()));
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(
    All, FusedTest,
    ::testing::Values("deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe",
                      "glm4_moe", "hunyuan_v1_moe", "jamba", "lfm2_moe",
                      "longcat_flash", "minimax", "minimax_m2", "mixtral",
                      "nemotron_h", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe",
                      "qwen3_next"),
    [](const auto& test) { return std::string(test.param); });

TEST(FamiliesTest, DecodersAreFoundUnderEveryPrefix) {
  const Parts parts = GoldenParts("qwen3_moe-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  for (const char* prefix : {"model.language_model.layers.",
                             "language_model.model.layers.", "layers."}) {
    SCOPED_TRACE(prefix);
    Parts moved = parts;
    moved.Rename("model.layers.", prefix);
    // The layers of an encoder of images are none of ours.
    moved.tensors.push_back(FloatTensor("vision_model.layers.0.mlp.fc1.weight",
                                        DType::kF32, {1, 1}, {1.0F}));
    MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*moved.Open()));
    EXPECT_EQ(got, want);
  }
}

TEST(FamiliesTest, DecodersAreDescribedAtTheTopOrInTextConfig) {
  const Parts parts = GoldenParts("mixtral-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  for (const char* type : {"mixtral", "mixtral_text"}) {
    Parts nested = parts;
    nested.config = {{"model_type", "some_images"},
                     {"text_config", parts.config}};
    nested.config["text_config"]["model_type"] = type;
    MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*nested.Open()));
    EXPECT_EQ(got, want);
  }
}

TEST(FamiliesTest, MistralHasTheLayoutOfLlama) {
  Parts parts = GoldenParts("llama-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  parts.config["model_type"] = "mistral";
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
}

TEST(FamiliesTest, EncoderAndDecoderAreTwoModels) {
  Parts parts = GoldenParts("switch_transformers-a");
  {
    const TestCheckpoint both = parts.Open();
    MOE_ASSERT_OK_AND_ASSIGN(const auto models, DescribeModels(*both));
    ASSERT_THAT(models, SizeIs(2));
    EXPECT_EQ(models[0].part, "encoder");
    EXPECT_EQ(models[1].part, "decoder");
    EXPECT_FALSE(models[0].layers[0].rule.has_value());
    EXPECT_TRUE(models[0].layers[1].rule.has_value());
  }
  // Encoders alone are published, too.
  parts.Rename("decoder.block.", "something.else.");
  const TestCheckpoint encoder = parts.Open();
  MOE_ASSERT_OK_AND_ASSIGN(const auto models, DescribeModels(*encoder));
  ASSERT_THAT(models, SizeIs(1));
  EXPECT_EQ(models[0].part, "encoder");
}

TEST(FamiliesTest, SparseLayersMayBeCountedInsteadOfStepped) {
  Parts parts = GoldenParts("switch_transformers-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  parts.config.erase("encoder_sparse_step");
  parts.config.erase("decoder_sparse_step");
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
}

TEST(FamiliesTest, ActivationOfT5ComesFromItsProjectionUnlessNamed) {
  Parts parts = GoldenParts("t5_v1_1-a");
  const auto activation = [&] {
    const auto models = DescribeModels(*parts.Open());
    MOE_EXPECT_OK(models);
    return (*models)[0].layers[0].experts.expert.activation.activation;
  };
  EXPECT_EQ(activation(), Activation::kGeluTanh);
  parts.config["feed_forward_proj"] = "gated-silu";
  EXPECT_EQ(activation(), Activation::kSilu);
  parts.config["dense_act_fn"] = "relu";
  EXPECT_EQ(activation(), Activation::kRelu);
}

// ---- Stored in four bits ----------------------------------------------------

constexpr int64_t kGroup = 32;

// Codes 0 to 15, zero points and scales for a matrix, made up; the values are
// (code - zero point) * scale.
struct Int4Matrix {
  int64_t rows;
  int64_t cols;
  uint32_t seed;
  bool symmetric;

  int Code(int64_t row, int64_t col) const {
    return static_cast<int>(
        (static_cast<uint64_t>(row * 31 + col * 7 + seed * 13) * 2654435761U >>
         7) %
        16);
  }
  int Zero(int64_t row, int64_t group) const {
    return symmetric ? 8 : static_cast<int>((row * 3 + group + seed) % 16);
  }
  // Exact in f16.
  float Scale(int64_t row, int64_t group) const {
    return std::ldexp(1.0F + static_cast<float>((row + group + seed) % 8) / 8,
                      -6);
  }
  int64_t groups() const { return (cols + kGroup - 1) / kGroup; }
};

using StoreInt4 =
    std::function<void(const Int4Matrix&, absl::string_view stem, Parts&)>;

// Replaces every expert's matrices by made-up ones: by all that `store` puts
// into `parts` under a name. The router stays as it is.
Parts WithInt4Experts(const StoreInt4& store, bool symmetric = true) {
  Parts parts = GoldenParts("qwen3_moe-a");
  Parts stored;
  stored.config = parts.config;
  uint32_t seed = 0;
  for (const TestTensor& tensor : parts.tensors) {
    if (!absl::StrContains(tensor.name, ".experts.")) {
      stored.tensors.push_back(tensor);
      continue;
    }
    store({tensor.shape[0], tensor.shape[1], ++seed, symmetric},
          absl::StripSuffix(tensor.name, ".weight"), stored);
  }
  return stored;
}

void StorePlain(const Int4Matrix& matrix, absl::string_view stem,
                Parts& parts) {
  std::vector<float> values;
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) {
      const int64_t group = c / kGroup;
      values.push_back(
          static_cast<float>(matrix.Code(r, c) - matrix.Zero(r, group)) *
          matrix.Scale(r, group));
    }
  }
  parts.tensors.push_back(FloatTensor(absl::StrCat(stem, ".weight"),
                                      DType::kF32, {matrix.rows, matrix.cols},
                                      values));
}

// Eight values to a word, the low nibble first.
template <typename Value>
int32_t Word(Value value) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    word |= static_cast<uint32_t>(value(i)) << (4 * i);
  }
  return static_cast<int32_t>(word);
}

// compressed-tensors: eight columns of a row to a word, and eight rows of zero
// points.
void StorePacked(const Int4Matrix& matrix, absl::string_view stem,
                 Parts& parts) {
  std::vector<int32_t> words;
  std::vector<int32_t> zeros;
  std::vector<float> scales;
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; c += 8) {
      words.push_back(Word([&](int i) { return matrix.Code(r, c + i); }));
    }
    for (int64_t g = 0; g < matrix.groups(); ++g) {
      scales.push_back(matrix.Scale(r, g));
      if (r % 8 != 0) continue;
      zeros.push_back(Word([&](int i) { return matrix.Zero(r + i, g); }));
    }
  }
  parts.tensors.push_back(RawTensor(absl::StrCat(stem, ".weight_packed"),
                                    DType::kI32, {matrix.rows, matrix.cols / 8},
                                    words));
  parts.tensors.push_back(FloatTensor(absl::StrCat(stem, ".weight_scale"),
                                      DType::kBF16,
                                      {matrix.rows, matrix.groups()}, scales));
  parts.tensors.push_back(
      RawTensor(absl::StrCat(stem, ".weight_shape"), DType::kI64, {2},
                std::vector<int64_t>{matrix.rows, matrix.cols}));
  if (matrix.symmetric) return;
  parts.tensors.push_back(RawTensor(absl::StrCat(stem, ".weight_zero_point"),
                                    DType::kI32,
                                    {matrix.rows / 8, matrix.groups()}, zeros));
}

// What GPTQ and AWQ have in common: scales and zero points [groups, rows], the
// latter eight rows to a word, whose nibble i is row order[i].
void StoreGroups(const Int4Matrix& matrix, absl::string_view stem,
                 const std::array<int, 8>& order, uint32_t less, Parts& parts) {
  std::vector<float> scales;
  std::vector<int32_t> zeros;
  for (int64_t g = 0; g < matrix.groups(); ++g) {
    for (int64_t r = 0; r < matrix.rows; ++r) {
      scales.push_back(matrix.Scale(r, g));
      if (r % 8 != 0) continue;
      const int32_t word =
          Word([&](size_t i) { return matrix.Zero(r + order[i], g); });
      zeros.push_back(static_cast<int32_t>(static_cast<uint32_t>(word) - less));
    }
  }
  parts.tensors.push_back(FloatTensor(absl::StrCat(stem, ".scales"),
                                      DType::kF16,
                                      {matrix.groups(), matrix.rows}, scales));
  parts.tensors.push_back(RawTensor(absl::StrCat(stem, ".qzeros"), DType::kI32,
                                    {matrix.groups(), matrix.rows / 8}, zeros));
}

// GPTQ: eight columns of a row to a word, zero points stored less one.
void StoreGptq(const Int4Matrix& matrix, absl::string_view stem, Parts& parts) {
  std::vector<int32_t> words;
  for (int64_t c = 0; c < matrix.cols; c += 8) {
    for (int64_t r = 0; r < matrix.rows; ++r) {
      words.push_back(Word([&](int i) { return matrix.Code(r, c + i); }));
    }
  }
  parts.tensors.push_back(RawTensor(absl::StrCat(stem, ".qweight"), DType::kI32,
                                    {matrix.cols / 8, matrix.rows}, words));
  StoreGroups(matrix, stem, {0, 1, 2, 3, 4, 5, 6, 7}, 0x11111111U, parts);
}

// AWQ: eight rows of a column to a word, in an order of its own.
void StoreAwq(const Int4Matrix& matrix, absl::string_view stem, Parts& parts) {
  constexpr std::array<int, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<int32_t> words;
  for (int64_t c = 0; c < matrix.cols; ++c) {
    for (int64_t r = 0; r < matrix.rows; r += 8) {
      words.push_back(
          Word([&](size_t i) { return matrix.Code(r + kOrder[i], c); }));
    }
  }
  parts.tensors.push_back(RawTensor(absl::StrCat(stem, ".qweight"), DType::kI32,
                                    {matrix.cols, matrix.rows / 8}, words));
  StoreGroups(matrix, stem, kOrder, 0, parts);
}

struct Int4Format {
  std::string name;
  StoreInt4 store;
  nlohmann::json quantization_config;
};

class FourBitTest : public ::testing::TestWithParam<Int4Format> {};

TEST_P(FourBitTest, ExpertsAnswerLikeTheirValues) {
  const Int4Format& format = GetParam();
  for (const bool symmetric : {true, false}) {
    SCOPED_TRACE(symmetric ? "symmetric" : "with zero points");
    // d_ff is 24 there: less than a group, and one word of each kind at least.
    MOE_ASSERT_OK_AND_ASSIGN(
        const auto want,
        Answers(*WithInt4Experts(StorePlain, symmetric).Open()));
    Parts parts = WithInt4Experts(format.store, symmetric);
    parts.config["quantization_config"] = format.quantization_config;
    MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
    EXPECT_EQ(got, want);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FourBitTest,
    ::testing::Values(Int4Format{"CompressedTensors",
                                 StorePacked,
                                 {{"quant_method", "compressed-tensors"},
                                  {"format", "pack-quantized"}}},
                      Int4Format{"Gptq",
                                 StoreGptq,
                                 {{"quant_method", "gptq"},
                                  {"bits", 4},
                                  {"group_size", kGroup}}},
                      Int4Format{"Awq",
                                 StoreAwq,
                                 {{"quant_method", "awq"},
                                  {"bits", 4},
                                  {"group_size", kGroup},
                                  {"zero_point", true},
                                  {"version", "gemm"},
                                  {"modules_to_not_convert", {"mlp.gate."}}}}),
    [](const auto& test) { return test.param.name; });

// ---- Families without recorded vectors --------------------------------------

// Plain loops in double precision, from the published rules alone.
using Vector = std::vector<double>;

Vector Widened(const TestTensor& tensor) {
  Vector values;
  for (size_t i = 0; i < tensor.bytes.size(); i += 4) {
    values.push_back(LoadUnaligned<float>(tensor.bytes.data() + i));
  }
  return values;
}

Vector Times(const TestTensor& matrix, const Vector& x) {
  const Vector w = Widened(matrix);
  Vector y(static_cast<size_t>(matrix.shape[0]), 0.0);
  for (size_t r = 0; r < y.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
  }
  return y;
}

// down(silu(gate x) * up x) of the tensors below `prefix`.
Vector SwiGlu(Parts& parts, const std::string& prefix, const Vector& x) {
  const Vector gate = Times(parts.Tensor(prefix + "gate_proj.weight"), x);
  Vector h = Times(parts.Tensor(prefix + "up_proj.weight"), x);
  for (size_t i = 0; i < h.size(); ++i) {
    h[i] *= gate[i] / (1 + std::exp(-gate[i]));
  }
  return Times(parts.Tensor(prefix + "down_proj.weight"), h);
}

Vector ReluSquared(Parts& parts, const std::string& prefix, const Vector& x) {
  Vector h = Times(parts.Tensor(prefix + "up_proj.weight"), x);
  for (double& value : h) value = value > 0 ? value * value : 0;
  return Times(parts.Tensor(prefix + "down_proj.weight"), h);
}

void AddScaled(double factor, const Vector& term, Vector& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * term[i];
}

// The position of the largest value that is not taken yet.
size_t Largest(const Vector& values, const std::vector<bool>& taken) {
  size_t best = values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!taken[i] && (best == values.size() || values[i] > values[best])) {
      best = i;
    }
  }
  return best;
}

std::vector<size_t> TopOf(const Vector& values, size_t k) {
  std::vector<bool> taken(values.size(), false);
  std::vector<size_t> top;
  for (size_t j = 0; j < k; ++j) {
    top.push_back(Largest(values, taken));
    taken[top.back()] = true;
  }
  return top;
}

void AddTensor(Parts& parts, const std::string& name,
               std::vector<int64_t> shape, uint32_t seed, float limit) {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  parts.tensors.push_back(FloatTensor(name, DType::kF32, std::move(shape),
                                      RandomFloats(size, limit, seed)));
}

// One routed layer of a Ling model (layer 1; layer 0 is dense).
constexpr int64_t kHidden = 16;
constexpr int64_t kInner = 8;
constexpr int64_t kExperts = 8;

Parts LingParts(const char* model_type) {
  Parts parts;
  parts.config = {{"model_type", model_type}, {"hidden_size", kHidden},
                  {"num_hidden_layers", 2},   {"first_k_dense_replace", 1},
                  {"intermediate_size", 20},  {"moe_intermediate_size", kInner},
                  {"num_experts", kExperts},  {"num_experts_per_tok", 3},
                  {"num_shared_experts", 2},  {"hidden_act", "silu"},
                  {"use_bias", false}};
  uint32_t seed = 100;
  const auto add_ffn = [&](const std::string& prefix, int64_t inner) {
    AddTensor(parts, prefix + "gate_proj.weight", {inner, kHidden}, ++seed, 1);
    AddTensor(parts, prefix + "up_proj.weight", {inner, kHidden}, ++seed, 1);
    AddTensor(parts, prefix + "down_proj.weight", {kHidden, inner}, ++seed, 1);
  };
  add_ffn("model.layers.0.mlp.", 20);
  AddTensor(parts, "model.layers.1.mlp.gate.weight", {kExperts, kHidden}, 99,
            1);
  for (int64_t e = 0; e < kExperts; ++e) {
    add_ffn(absl::StrCat("model.layers.1.mlp.experts.", e, "."), kInner);
  }
  add_ffn("model.layers.1.mlp.shared_experts.", 2 * kInner);
  return parts;
}

// The routed layer's part of Answers, which come last, against `route`: logits
// to (expert, weight) pairs.
using Mixture = std::vector<std::pair<size_t, double>>;
void ExpectLing(Parts& parts,
                const std::function<Mixture(const Vector& logits)>& route) {
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  const auto inputs = RandomFloats(5 * kHidden, 2.0F, 3);
  ASSERT_EQ(got.size(), 2 * inputs.size());
  const std::string mlp = "model.layers.1.mlp.";
  for (size_t t = 0; t < 5; ++t) {
    const Vector x(inputs.begin() + static_cast<int64_t>(t) * kHidden,
                   inputs.begin() + static_cast<int64_t>(t + 1) * kHidden);
    Vector want = SwiGlu(parts, mlp + "shared_experts.", x);
    for (const auto& [expert, weight] :
         route(Times(parts.Tensor(mlp + "gate.weight"), x))) {
      AddScaled(weight,
                SwiGlu(parts, absl::StrCat(mlp, "experts.", expert, "."), x),
                want);
    }
    double largest = 0;
    for (const double v : want) largest = std::max(largest, std::fabs(v));
    for (size_t c = 0; c < want.size(); ++c) {
      ASSERT_NEAR(got[inputs.size() + t * kHidden + c], want[c],
                  2e-5 * largest + 1e-6)
          << "token " << t << ", column " << c;
    }
  }
}

TEST(FamiliesTest, LingRoutesBySoftmax) {
  for (const bool renormalize : {false, true}) {
    Parts parts = LingParts("bailing_moe");
    parts.config["norm_topk_prob"] = renormalize;
    ExpectLing(parts, [renormalize](const Vector& logits) {
      double all = 0;
      for (const double z : logits) all += std::exp(z);
      Mixture mixture;
      double chosen = 0;
      for (const size_t e : TopOf(logits, 3)) {
        mixture.push_back({e, std::exp(logits[e]) / all});
        chosen += mixture.back().second;
      }
      if (renormalize) {
        for (auto& [expert, weight] : mixture) weight /= chosen;
      }
      return mixture;
    });
  }
}

TEST(FamiliesTest, Ling2RoutesBySigmoidInGroups) {
  for (const int64_t top_k : {3, 1}) {
    Parts parts = LingParts("bailing_moe_v2");
    parts.config["num_experts_per_tok"] = top_k;
    parts.config["n_group"] = 4;
    parts.config["topk_group"] = 2;
    parts.config["routed_scaling_factor"] = 2.5;
    parts.config["norm_topk_prob"] = true;  // the only one that is computed
    AddTensor(parts, "model.layers.1.mlp.gate.expert_bias", {kExperts}, 7,
              0.5F);
    const Vector bias =
        Widened(parts.Tensor("model.layers.1.mlp.gate.expert_bias"));
    ExpectLing(parts, [&bias, top_k](const Vector& logits) {
      Vector score;
      Vector choice;
      for (size_t e = 0; e < logits.size(); ++e) {
        score.push_back(1 / (1 + std::exp(-logits[e])));
        choice.push_back(score[e] + bias[e]);
      }
      // Groups of two: both are its two best.
      Vector groups;
      for (size_t g = 0; g < 4; ++g) {
        groups.push_back(choice[2 * g] + choice[2 * g + 1]);
      }
      const std::vector<size_t> best = TopOf(groups, 2);
      for (size_t e = 0; e < choice.size(); ++e) {
        if (e / 2 != best[0] && e / 2 != best[1]) choice[e] = -1e9;
      }
      Mixture mixture;
      double sum = 0;
      for (const size_t e : TopOf(choice, static_cast<size_t>(top_k))) {
        mixture.push_back({e, score[e]});
        sum += score[e];
      }
      for (auto& [expert, weight] : mixture) {
        if (top_k > 1) weight /= sum + 1e-20;
        weight *= 2.5;
      }
      return mixture;
    });
  }
}

// Nemotron-H with latent experts: the routed ones see and give vectors of 8.
TEST(FamiliesTest, LatentExpertsWorkBetweenTwoProjections) {
  constexpr int64_t kLatent = 8;
  Parts parts;
  parts.config = {{"model_type", "nemotron_h"},
                  {"hidden_size", kHidden},
                  {"num_hidden_layers", 2},
                  {"hybrid_override_pattern", "ME"},
                  {"mlp_hidden_act", "relu2"},
                  {"moe_intermediate_size", kInner},
                  {"moe_latent_size", kLatent},
                  {"moe_shared_expert_intermediate_size", 12},
                  {"n_routed_experts", 4},
                  {"num_experts_per_tok", 2},
                  {"n_group", 1},
                  {"topk_group", 1},
                  {"norm_topk_prob", true},
                  {"routed_scaling_factor", 2.5}};
  const std::string mixer = "backbone.layers.1.mixer.";
  AddTensor(parts, mixer + "gate.weight", {4, kHidden}, 1, 1);
  AddTensor(parts, mixer + "gate.e_score_correction_bias", {4}, 2, 0.5F);
  AddTensor(parts, mixer + "fc1_latent_proj.weight", {kLatent, kHidden}, 3, 1);
  AddTensor(parts, mixer + "fc2_latent_proj.weight", {kHidden, kLatent}, 4, 1);
  for (uint32_t e = 0; e < 4; ++e) {
    const std::string expert = absl::StrCat(mixer, "experts.", e, ".");
    AddTensor(parts, expert + "up_proj.weight", {kInner, kLatent}, 10 + e, 1);
    AddTensor(parts, expert + "down_proj.weight", {kLatent, kInner}, 20 + e, 1);
  }
  AddTensor(parts, mixer + "shared_experts.up_proj.weight", {12, kHidden}, 5,
            1);
  AddTensor(parts, mixer + "shared_experts.down_proj.weight", {kHidden, 12}, 6,
            1);

  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  const auto inputs = RandomFloats(5 * kHidden, 2.0F, 3);
  ASSERT_EQ(got.size(), inputs.size());
  const Vector bias =
      Widened(parts.Tensor(mixer + "gate.e_score_correction_bias"));
  for (size_t t = 0; t < 5; ++t) {
    const Vector x(inputs.begin() + static_cast<int64_t>(t) * kHidden,
                   inputs.begin() + static_cast<int64_t>(t + 1) * kHidden);
    const Vector logits = Times(parts.Tensor(mixer + "gate.weight"), x);
    Vector score;
    Vector choice;
    for (size_t e = 0; e < 4; ++e) {
      score.push_back(1 / (1 + std::exp(-logits[e])));
      choice.push_back(score[e] + bias[e]);
    }
    const std::vector<size_t> top = TopOf(choice, 2);
    const double sum = score[top[0]] + score[top[1]] + 1e-20;
    const Vector latent =
        Times(parts.Tensor(mixer + "fc1_latent_proj.weight"), x);
    Vector mixed(kLatent, 0.0);
    for (const size_t e : top) {
      AddScaled(
          score[e] / sum * 2.5,
          ReluSquared(parts, absl::StrCat(mixer, "experts.", e, "."), latent),
          mixed);
    }
    Vector want = Times(parts.Tensor(mixer + "fc2_latent_proj.weight"), mixed);
    AddScaled(1.0, ReluSquared(parts, mixer + "shared_experts.", x), want);
    double largest = 0;
    for (const double v : want) largest = std::max(largest, std::fabs(v));
    for (size_t c = 0; c < want.size(); ++c) {
      ASSERT_NEAR(got[t * kHidden + c], want[c], 2e-5 * largest + 1e-6);
    }
  }
}

// ---- What is refused --------------------------------------------------------

struct Refusal {
  std::string name;
  const char* golden_case;
  std::function<void(Parts&)> spoil;
  absl::StatusCode code;
  std::string message;  // a part of it
};

class FamiliesRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(FamiliesRefusalTest, NamesWhatIsWrongInOneLine) {
  Parts parts = GoldenParts(GetParam().golden_case);
  GetParam().spoil(parts);
  EXPECT_THAT(Answers(*parts.Open()),
              StatusIs(GetParam().code, AllOf(HasSubstr(GetParam().message),
                                              Not(HasSubstr("\n")))));
}

Refusal ConfigRefusal(
    const std::string& name, const char* golden_case, const char* key,
    const nlohmann::json& value, const std::string& message,
    absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  return {name, golden_case,
          [key, value](Parts& parts) {
            parts.config[nlohmann::json::json_pointer(key)] = value;
          },
          code, message};
}

constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;

INSTANTIATE_TEST_SUITE_P(
    Config, FamiliesRefusalTest,
    ::testing::Values(
        ConfigRefusal("UnknownFamily", "mixtral-a", "/model_type", "mixxtral",
                      "config.json: model_type: want one of bailing_moe, "
                      "bailing_moe_v2, bert",
                      kUnimplemented),
        ConfigRefusal("NoFamily", "mixtral-a", "/model_type", nullptr,
                      "config.json: model_type: want"),
        ConfigRefusal("TopKAboveExperts", "mixtral-a", "/num_experts_per_tok",
                      9,
                      "config.json: num_experts_per_tok: want 1 to 8, got 9"),
        ConfigRefusal("TopKAboveExpertsInText", "llama4-a",
                      "/text_config/num_experts_per_tok", 5,
                      "config.json: text_config.num_experts_per_tok: want 1 to "
                      "4, got 5"),
        ConfigRefusal("TopKAboveExpertsNested", "dbrx-a",
                      "/ffn_config/moe_top_k", 9,
                      "config.json: ffn_config.moe_top_k: want 1 to 8, got 9"),
        ConfigRefusal("GroupsThatDoNotDivide", "deepseek_v3-a", "/n_group", 3,
                      "config.json: n_group: want a divisor of 16, got 3"),
        ConfigRefusal("MoreGroupsThanThereAre", "deepseek_v3-a", "/topk_group",
                      5, "config.json: topk_group: want 1 to 4, got 5"),
        ConfigRefusal("GroupsWithTooFewExperts", "deepseek_v3-a",
                      "/num_experts_per_tok", 9,
                      "config.json: num_experts_per_tok: want at most 8"),
        ConfigRefusal("UnknownActivation", "mixtral-a", "/hidden_act", "mish",
                      "config.json: hidden_act: want one of silu, swish, gelu",
                      kUnimplemented),
        ConfigRefusal("NoWidth", "mixtral-a", "/hidden_size", nullptr,
                      "config.json: hidden_size: want an integer >= 1, got "
                      "nothing"),
        ConfigRefusal("WidthOfText", "mixtral-a", "/intermediate_size", "wide",
                      "config.json: intermediate_size: want an integer >= 1"),
        ConfigRefusal("ListTooShort", "hunyuan_v1_moe-a", "/moe_topk",
                      nlohmann::json::array({4}),
                      "config.json: moe_topk: want an item for every layer, "
                      "got 1 items"),
        ConfigRefusal("PatternTooShort", "nemotron_h-a",
                      "/hybrid_override_pattern", "ME",
                      "config.json: hybrid_override_pattern: want 4 letters, "
                      "got 2"),
        ConfigRefusal("UnknownScore", "deepseek_v3-a", "/scoring_func",
                      "softmax",
                      "config.json: scoring_func: want \"sigmoid\", got "
                      "\"softmax\"",
                      kUnimplemented),
        ConfigRefusal("UnknownMethod", "deepseek_v2-a", "/topk_method",
                      "random",
                      "config.json: topk_method: want \"greedy\" or "
                      "\"group_limited_greedy\", got \"random\"",
                      kUnimplemented),
        ConfigRefusal("UnknownZeroExperts", "longcat_flash-a",
                      "/zero_expert_type", "constant",
                      "config.json: zero_expert_type: want \"identity\"",
                      kUnimplemented),
        ConfigRefusal("GateWithoutTensor", "t5-a", "/feed_forward_proj",
                      "gated-gelu",
                      "config.json: feed_forward_proj: want no gate, got "
                      "\"gated-gelu\""),
        ConfigRefusal("TensorWithoutGate", "t5_v1_1-a", "/feed_forward_proj",
                      "relu", "config.json: feed_forward_proj: want"),
        ConfigRefusal("NormOfNoOrder", "dbrx-a",
                      "/ffn_config/moe_normalize_expert_weights", 0,
                      "config.json: ffn_config.moe_normalize_expert_weights: "
                      "want null or a number above 0, at most 16, got 0"),
        ConfigRefusal("MoreChoicesThanOne", "switch_transformers-a",
                      "/num_selected_experts", 2,
                      "config.json: num_selected_experts: want 1, got 2",
                      kUnimplemented),
        ConfigRefusal("MoreExpertsThanTheFile", "mixtral-a",
                      "/num_local_experts", 9,
                      "\"model.layers.0.block_sparse_moe.gate.weight\": want"),
        ConfigRefusal("FewerExpertsThanTheFile", "mixtral-a",
                      "/num_local_experts", 7,
                      "config.json: num_local_experts: want all experts that "
                      "the checkpoint has"),
        ConfigRefusal("FewerStackedExpertsThanTheFile", "granitemoe-a",
                      "/num_local_experts", 7,
                      "\"model.layers.0.block_sparse_moe.router.layer.weight\""
                      ": want"),
        ConfigRefusal("OtherInnerWidth", "mixtral-a", "/intermediate_size", 40,
                      "\"model.layers.0.block_sparse_moe.experts.0.w1.weight\""
                      ": want"),
        ConfigRefusal("OtherInnerWidthOfStack", "llama4-a",
                      "/text_config/intermediate_size", 16,
                      "feed_forward.experts.gate_up_proj\": want"),
        ConfigRefusal("MoreLayersThanTheFile", "mixtral-a",
                      "/num_hidden_layers", 3,
                      "config.json: num_hidden_layers: want at most 2, the "
                      "layers that the checkpoint has tensors of, got 3"),
        ConfigRefusal("LayersWithoutEnd", "mixtral-a", "/num_hidden_layers",
                      int64_t{1} << 62,
                      "config.json: num_hidden_layers: want at most 2, the"),
        ConfigRefusal("WidthWithoutEnd", "mixtral-a", "/hidden_size",
                      int64_t{1} << 62,
                      "config.json: hidden_size: want at most 524288, got"),
        ConfigRefusal("ExpertsWithoutEnd", "mixtral-a", "/num_local_experts",
                      int64_t{1} << 40,
                      "config.json: num_local_experts: want at most"),
        ConfigRefusal("SharedExpertsWithoutEnd", "deepseek_v3-a",
                      "/n_shared_experts", int64_t{1} << 62,
                      "config.json: n_shared_experts: want at most"),
        ConfigRefusal("LatentWidthWithoutEnd", "nemotron_h-a",
                      "/moe_latent_size", int64_t{1} << 62,
                      "config.json: moe_latent_size: want at most"),
        ConfigRefusal("UnknownLetter", "nemotron_h-a",
                      "/hybrid_override_pattern", "MEXE",
                      "config.json: hybrid_override_pattern: want letters E, "
                      "-, M or *, got \"X\"",
                      kUnimplemented),
        ConfigRefusal("LayerSaidToHaveNoFfn", "nemotron_h-a",
                      "/hybrid_override_pattern", "MM*E",
                      "\"backbone.layers.1.mixer.experts.0.down_proj.weight"
                      "\": want none, as the layer has no FFN"),
        ConfigRefusal("UnknownKindOfLayer", "nemotron_h-a",
                      "/layers_block_type",
                      nlohmann::json::array({"mamba", "moe", "rwkv", "moe"}),
                      "config.json: layers_block_type: want items \"moe\"",
                      kUnimplemented),
        ConfigRefusal("PatternAndListDisagree", "nemotron_h-a",
                      "/layers_block_type",
                      nlohmann::json::array({"mamba", "moe", "moe", "moe"}),
                      "config.json: hybrid_override_pattern: want what "
                      "layers_block_type says"),
        ConfigRefusal("TwoSpellingsDisagree", "qwen3_moe-a",
                      "/num_local_experts", 8,
                      "config.json: num_local_experts: want 16, as num_experts "
                      "has, which means the same, got 8"),
        ConfigRefusal("NullForAFlag", "qwen3_moe-a", "/norm_topk_prob", nullptr,
                      "config.json: norm_topk_prob: want a value, or no such "
                      "key, which stands for false, got null"),
        ConfigRefusal("GroupsThatNothingConfirms", "deepseek_v3-a", "/n_group",
                      nullptr,
                      "config.json: n_group: want a value, got "
                      "nothing"),
        ConfigRefusal("ClassOfAnotherFamily", "qwen3_moe-a", "/architectures",
                      nlohmann::json::array({"MixtralForCausalLM"}),
                      "config.json: architectures: want a class of Qwen3Moe, "
                      "as model_type \"qwen3_moe\" has, got "
                      "\"MixtralForCausalLM\"",
                      kUnimplemented),
        ConfigRefusal("UnknownClass", "qwen3-a", "/architectures",
                      nlohmann::json::array({"Qwen3OmniForCausalLM"}),
                      "config.json: architectures: want a class of Qwen2 or "
                      "Qwen3",
                      kUnimplemented),
        ConfigRefusal("ClassOfTheAuthors", "deepseek_v3-a", "/auto_map",
                      {{"AutoConfig",
                        "configuration_deepseek.DeepseekV3Config"},
                       {"AutoModel", "modeling_deepseek.DeepseekV4Model"}},
                      "config.json: auto_map.AutoModel: want a class of "
                      "DeepseekV3 or KimiK2",
                      kUnimplemented),
        ConfigRefusal(
            "HolderOfAnotherFamily", "llama4-a", "/architectures",
            nlohmann::json::array({"Qwen3VLMoeForConditionalGeneration"}),
            "config.json: architectures: want a class of Llama4",
            kUnimplemented),
        ConfigRefusal("ScoreOfAnotherFamily", "mixtral-a", "/scoring_func",
                      "sigmoid",
                      "config.json: scoring_func: want \"softmax\", which is "
                      "what is computed, got \"sigmoid\"",
                      kUnimplemented),
        ConfigRefusal("ScaleOfAnotherFamily", "minimax_m2-a",
                      "/routed_scaling_factor", 2.0,
                      "config.json: routed_scaling_factor: want 1, which is "
                      "what is computed, got 2.0",
                      kUnimplemented),
        ConfigRefusal("GroupsOfAnotherFamily", "qwen3_moe-a", "/n_group", 4,
                      "config.json: n_group: want 1", kUnimplemented),
        ConfigRefusal("LimitOfAnotherFamily", "llama-a", "/swiglu_limit", 7.0,
                      "config.json: swiglu_limit: want nothing",
                      kUnimplemented),
        ConfigRefusal("UnfollowedFlag", "qwen3_vl_moe-a",
                      "/text_config/norm_topk_prob", false,
                      "config.json: text_config.norm_topk_prob: want true",
                      kUnimplemented),
        ConfigRefusal("BiasesThatAreNotThere", "llama-a", "/mlp_bias", true,
                      "\"model.layers.0.mlp.gate_proj.bias\"", kNotFound),
        ConfigRefusal("LayersThatAreDense", "lfm2_moe-a", "/num_dense_layers",
                      2,
                      "\"model.layers.1.feed_forward.expert_bias\": want "
                      "none of that name",
                      kUnimplemented)),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tensors, FamiliesRefusalTest,
    ::testing::Values(
        Refusal{"MissingExpert", "mixtral-a",
                [](Parts& parts) {
                  parts.Remove(
                      "model.layers.1.block_sparse_moe.experts.5.w2.weight");
                },
                kNotFound,
                "\"model.layers.1.block_sparse_moe.experts.5.w2.weight\""},
        Refusal{"MissingGate", "qwen3_moe-a",
                [](Parts& parts) {
                  parts.Remove("model.layers.0.mlp.gate.weight");
                },
                kNotFound, "\"model.layers.0.mlp.gate.weight\""},
        Refusal{
            "MissingSelectionBias", "deepseek_v3-a",
            [](Parts& parts) {
              parts.Remove("model.layers.1.mlp.gate.e_score_correction_bias");
            },
            kNotFound, "\"model.layers.1.mlp.gate.e_score_correction_bias\""},
        Refusal{
            "MissingSharedExpert", "qwen2_moe-a",
            [](Parts& parts) {
              parts.Remove("model.layers.0.mlp.shared_expert.up_proj.weight");
            },
            kNotFound, "\"model.layers.0.mlp.shared_expert.up_proj.weight\""},
        Refusal{"WrongShape", "qwen3_moe-a",
                [](Parts& parts) {
                  TestTensor& tensor = parts.Tensor(
                      "model.layers.0.mlp.experts.3.up_proj.weight");
                  std::swap(tensor.shape[0], tensor.shape[1]);
                },
                kInvalid, "experts.3.up_proj.weight\": want"},
        Refusal{"WrongLengthOfSelectionBias", "deepseek_v3-a",
                [](Parts& parts) {
                  TestTensor& tensor = parts.Tensor(
                      "model.layers.1.mlp.gate.e_score_correction_bias");
                  tensor.shape = {8, 2};
                },
                kInvalid, "e_score_correction_bias\": want"},
        Refusal{"UnexpectedBias", "llama-a",
                [](Parts& parts) {
                  parts.tensors.push_back(FloatTensor(
                      "model.layers.0.mlp.down_proj.bias", DType::kF32, {64},
                      std::vector<float>(64, 1.0F)));
                },
                kInvalid,
                "tensor \"model.layers.0.mlp.down_proj.bias\": want none "
                "without mlp_bias, got one"},
        Refusal{"NeitherSide", "t5-a",
                [](Parts& parts) { parts.Rename("coder.block.", "coder."); },
                kNotFound, "tensors: want some named encoder.block.{L}"},
        Refusal{"AwqOfAnotherVersion", "qwen3_moe-a",
                [](Parts& parts) {
                  parts = WithInt4Experts(StoreAwq);
                  parts.config["quantization_config"] = {
                      {"quant_method", "awq"}, {"version", "gemv"}};
                },
                kUnimplemented,
                "AWQ of version \"gemv\" is not supported; "
                "quantization_config.quant_method is \"awq\""},
        Refusal{"ActivationOrder", "qwen3_moe-a",
                [](Parts& parts) {
                  parts = WithInt4Experts(StoreGptq);
                  parts.tensors.push_back(RawTensor(
                      "model.layers.0.mlp.experts.0.gate_proj.g_idx",
                      DType::kI32, {64}, std::vector<int32_t>(64, 1)));
                },
                kUnimplemented, "activation order (desc_act) is not supported"},
        Refusal{"BitsAndBytes", "qwen3_moe-a",
                [](Parts& parts) {
                  parts.config["quantization_config"] = {
                      {"quant_method", "bitsandbytes"}};
                  TestTensor& tensor = parts.Tensor(
                      "model.layers.0.mlp.experts.0.gate_proj.weight");
                  tensor.dtype = DType::kU8;
                  tensor.shape = {24 * 64 / 2, 1};
                  tensor.bytes.resize(24 * 64 / 2);
                },
                kUnimplemented,
                "config.json: quantization_config.quant_method: want"}),
    [](const auto& test) { return test.param.name; });

TEST(FamiliesTest, TypesOfTwoFamiliesAreToldApartByTheirClass) {
  Parts parts = LingParts("bailing_moe");
  AddTensor(parts, "model.layers.1.mlp.gate.expert_bias", {kExperts}, 98, 0.5F);
  parts.config["n_group"] = 4;
  parts.config["topk_group"] = 2;
  // By itself the type stands for the first version, which has no such bias.
  EXPECT_THAT(Answers(*parts.Open()),
              StatusIs(kUnimplemented, HasSubstr("n_group: want 1")));
  parts.config["architectures"] = {"BailingMoeV2ForCausalLM"};
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  parts.config["model_type"] = "bailing_moe_v2";
  parts.config.erase("architectures");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
  parts.config["architectures"] = {"BailingMoeForCausalLM"};
  EXPECT_THAT(Answers(*parts.Open()),
              StatusIs(kUnimplemented, HasSubstr("architectures: want a class "
                                                 "of BailingMoeV2")));
}

TEST(FamiliesTest, NemotronListsItsLayersByNameToo) {
  Parts parts = GoldenParts("nemotron_h-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  parts.config.erase("hybrid_override_pattern");
  parts.config.erase("num_hidden_layers");
  parts.config["layers_block_type"] = {"linear_attention", "moe",
                                       "full_attention", "moe"};
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
  parts.config["num_hidden_layers"] = 3;
  EXPECT_THAT(Answers(*parts.Open()),
              StatusIs(kInvalid, HasSubstr("num_hidden_layers: want 4, as "
                                           "layers_block_type has, got 3")));
}

TEST(FamiliesTest, HeirsOfDeepSeekV3RouteAsItDoes) {
  Parts parts = GoldenParts("deepseek_v3-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  for (const auto& [type, name] :
       {std::make_pair("deepseek_v32", "DeepseekV32ForCausalLM"),
        std::make_pair("glm_moe_dsa", "GlmMoeDsaForCausalLM")}) {
    SCOPED_TRACE(type);
    parts.config["model_type"] = type;
    parts.config["architectures"] = {name};
    parts.config.erase("mlp_layer_types");
    MOE_ASSERT_OK_AND_ASSIGN(const auto counted, Answers(*parts.Open()));
    EXPECT_EQ(counted, want);
    parts.config["mlp_layer_types"] = {"dense", "sparse"};
    MOE_ASSERT_OK_AND_ASSIGN(const auto listed, Answers(*parts.Open()));
    EXPECT_EQ(listed, want);
    parts.config["mlp_layer_types"] = {"dense"};
    EXPECT_THAT(Answers(*parts.Open()),
                StatusIs(kInvalid, HasSubstr("mlp_layer_types: want an item "
                                             "for every layer, got 1 items")));
    parts.config["mlp_layer_types"] = {"dense", "hashed"};
    EXPECT_THAT(Answers(*parts.Open()),
                StatusIs(kUnimplemented,
                         HasSubstr("mlp_layer_types: want items \"dense\" or "
                                   "\"sparse\", got \"hashed\"")));
  }
}

TEST(FamiliesTest, GraniteMayHaveTheNamesOfTheLibrary) {
  Parts parts = GoldenParts("granitemoe-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  parts.Rename("input_linear.weight", "experts.gate_up_proj");
  parts.Rename("output_linear.weight", "experts.down_proj");
  parts.Rename("router.layer.weight", "router.weight");
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
}

TEST(FamiliesTest, StacksOfQwenVlLieEitherWay) {
  Parts parts = GoldenParts("qwen3_vl_moe-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  for (TestTensor& tensor : parts.tensors) {
    if (!absl::StrContains(tensor.name, ".experts.")) continue;
    const auto rows = static_cast<size_t>(tensor.shape[1]);
    const auto cols = static_cast<size_t>(tensor.shape[2]);
    const size_t each = rows * cols * 2;
    std::vector<uint8_t> turned(tensor.bytes.size());
    for (size_t at = 0; at < turned.size(); at += 2) {
      const size_t expert = at / each;
      const size_t row = at % each / 2 / cols;
      const size_t col = at % each / 2 % cols;
      const size_t to = expert * each + (col * rows + row) * 2;
      std::copy_n(tensor.bytes.begin() + static_cast<int64_t>(at), 2,
                  turned.begin() + static_cast<int64_t>(to));
    }
    tensor.bytes = std::move(turned);
    std::swap(tensor.shape[1], tensor.shape[2]);
  }
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
}

TEST(FamiliesTest, SavedWeightsOfIdentityExpertsAreLeftAlone) {
  Parts parts = GoldenParts("longcat_flash-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  for (int e = 8; e < 12; ++e) {
    for (const char* name : {"gate_proj", "up_proj"}) {
      AddTensor(
          parts,
          absl::StrCat("model.layers.0.mlp.experts.", e, ".", name, ".weight"),
          {24, 64}, 1, 1);
    }
  }
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
  AddTensor(parts, "model.layers.0.mlp.experts.12.up_proj.weight", {24, 64}, 1,
            1);
  EXPECT_THAT(Answers(*parts.Open()),
              StatusIs(kInvalid, HasSubstr("experts.12.up_proj.weight")));
}

TEST(FamiliesTest, ScalesOfActivationsAreLeftAlone) {
  Parts parts = GoldenParts("deepseek_v3_fp8-a");
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Answers(*parts.Open()));
  AddTensor(parts, "model.layers.1.mlp.experts.0.up_proj.input_scale", {1}, 1,
            1);
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Answers(*parts.Open()));
  EXPECT_EQ(got, want);
  AddTensor(parts, "model.layers.1.mlp.experts.0.up_proj.other_scale", {1}, 1,
            1);
  EXPECT_THAT(Answers(*parts.Open()),
              StatusIs(kUnimplemented, HasSubstr("up_proj.other_scale")));
}

// ---- The table itself -------------------------------------------------------

TEST(FamiliesTest, EveryEntryIsComplete) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(std::string(family.model_types));
    const bool dense = family.dense.layouts.front() != nullptr;
    const bool routed = family.routed.layouts.front() != nullptr;
    EXPECT_TRUE(dense || routed);
    EXPECT_EQ(family.kind == AllDense, !routed);
    EXPECT_FALSE(routed && family.routed.gate.empty());
    EXPECT_THAT(std::string(family.layer), HasSubstr("{L}"));
    EXPECT_TRUE(absl::EndsWith(family.layer, "."));
  }
}

TEST(FamiliesTest, BiasNamesFollowTheWeights) {
  EXPECT_EQ(BiasName("a.fc1.weight"), "a.fc1.bias");
  EXPECT_EQ(BiasName("a.gate_up_proj"), "a.gate_up_proj_bias");
  EXPECT_EQ(ExpertTensor("experts.{E}.w1", 12), "experts.12.w1");
  EXPECT_EQ(ExpertTensor("experts.gate_up_proj", 12), "experts.gate_up_proj");
}

}  // namespace
}  // namespace moe
