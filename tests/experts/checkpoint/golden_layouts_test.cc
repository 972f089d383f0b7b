// The conformance data, read through the views alone: with the recorded routing
// and a slow FFN in double precision, the recorded outputs must come out. This
// shows every layout and every stored precision right, without any of the code
// that packs or multiplies.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/checkpoint/open_matrix.h"
#include "experts/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using Row = std::vector<double>;

std::string Folder(absl::string_view name) {
  return absl::StrCat(MOE_GOLDEN_DIR, "/", name);
}

Row RowOf(const StoredMatrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.cols));
  matrix.Read(row, 0, absl::MakeSpan(values));
  return Row(values.begin(), values.end());
}

// matrix * x + bias
Row Apply(const StoredMatrix& matrix, const Row& x, const Row& bias = {}) {
  Row y(static_cast<size_t>(matrix.rows));
  for (size_t row = 0; row < y.size(); ++row) {
    const Row weights = RowOf(matrix, static_cast<int64_t>(row));
    y[row] = bias.empty() ? 0 : bias[row];
    for (size_t col = 0; col < x.size(); ++col) y[row] += weights[col] * x[col];
  }
  return y;
}

double SiluProduct(double gate, double up) {
  return gate / (1 + std::exp(-gate)) * up;
}
double ClampedProduct(double gate, double up) {
  gate = std::min(gate, 7.0);
  up = std::clamp(up, -7.0, 7.0);
  return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
}

struct Expert {
  StoredMatrix gate, up, down;
  Row gate_bias = {}, up_bias = {}, down_bias = {};

  Row Forward(const Row& x, double (*product)(double, double)) const {
    const Row g = Apply(gate, x, gate_bias);
    Row h = Apply(up, x, up_bias);
    for (size_t i = 0; i < h.size(); ++i) h[i] = product(g[i], h[i]);
    return Apply(down, h, down_bias);
  }
};

struct Shape {
  int64_t experts, d_model, d_ff;
};

StoredMatrix Opened(const Checkpoint& checkpoint, const std::string& name,
                    int64_t rows, int64_t cols) {
  auto matrix = OpenMatrix(checkpoint, name, rows, cols);
  MOE_EXPECT_OK(matrix);
  return matrix.value_or(StoredMatrix());
}
StoredStack Opened(const Checkpoint& checkpoint, const std::string& name,
                   int64_t count, int64_t rows, int64_t cols,
                   StoredOrder order) {
  auto stack = OpenStack(checkpoint, name, count, rows, cols, order);
  MOE_EXPECT_OK(stack);
  return stack.value_or(StoredStack());
}

// The layouts there are, each as a function from a layer's prefix to experts.
using Layout = std::function<std::vector<Expert>(
    const Checkpoint&, const std::string& prefix, Shape)>;

std::vector<Expert> Named(const Checkpoint& checkpoint,
                          const std::string& prefix, Shape shape,
                          const char* gate, const char* up, const char* down) {
  std::vector<Expert> experts;
  for (int64_t e = 0; e < shape.experts; ++e) {
    const std::string stem = absl::StrCat(prefix, ".experts.", e, ".");
    const auto open = [&](const char* name, int64_t rows, int64_t cols) {
      return Opened(checkpoint, absl::StrCat(stem, name, ".weight"), rows,
                    cols);
    };
    experts.push_back({.gate = open(gate, shape.d_ff, shape.d_model),
                       .up = open(up, shape.d_ff, shape.d_model),
                       .down = open(down, shape.d_model, shape.d_ff)});
  }
  return experts;
}
std::vector<Expert> Projections(const Checkpoint& checkpoint,
                                const std::string& prefix, Shape shape) {
  return Named(checkpoint, prefix, shape, "gate_proj", "up_proj", "down_proj");
}
std::vector<Expert> W123(const Checkpoint& checkpoint,
                         const std::string& prefix, Shape shape) {
  return Named(checkpoint, prefix, shape, "w1", "w3", "w2");
}

// One tensor for all gates and ups, first the gates.
std::vector<Expert> Concatenated(const Checkpoint& checkpoint,
                                 const std::string& gate_up_name,
                                 const std::string& down_name, Shape shape,
                                 StoredOrder order) {
  const StoredStack gate_up = Opened(checkpoint, gate_up_name, shape.experts,
                                     2 * shape.d_ff, shape.d_model, order);
  const StoredStack down = Opened(checkpoint, down_name, shape.experts,
                                  shape.d_model, shape.d_ff, order);
  std::vector<Expert> experts;
  for (int64_t e = 0; e < shape.experts; ++e) {
    experts.push_back({.gate = gate_up[e].Rows(0, shape.d_ff),
                       .up = gate_up[e].Rows(shape.d_ff, shape.d_ff),
                       .down = down[e]});
  }
  return experts;
}
std::vector<Expert> Granite(const Checkpoint& checkpoint,
                            const std::string& prefix, Shape shape) {
  return Concatenated(checkpoint, prefix + ".input_linear.weight",
                      prefix + ".output_linear.weight", shape,
                      StoredOrder::kOutIn);
}
std::vector<Expert> PackedOutIn(const Checkpoint& checkpoint,
                                const std::string& prefix, Shape shape) {
  return Concatenated(checkpoint, prefix + ".experts.gate_up_proj",
                      prefix + ".experts.down_proj", shape,
                      StoredOrder::kOutIn);
}
std::vector<Expert> PackedInOut(const Checkpoint& checkpoint,
                                const std::string& prefix, Shape shape) {
  return Concatenated(checkpoint, prefix + ".experts.gate_up_proj",
                      prefix + ".experts.down_proj", shape,
                      StoredOrder::kInOut);
}

// Gate and up rows take turns, and there are biases; bf16 or MXFP4.
std::vector<Expert> GptOss(const Checkpoint& checkpoint,
                           const std::string& prefix, Shape shape) {
  const auto& [experts, d_model, d_ff] = shape;
  const std::string stem = prefix + ".experts.";
  const StoredStack gate_up = Opened(checkpoint, stem + "gate_up_proj", experts,
                                     2 * d_ff, d_model, StoredOrder::kInOut);
  const StoredStack down = Opened(checkpoint, stem + "down_proj", experts,
                                  d_model, d_ff, StoredOrder::kInOut);
  const StoredMatrix gate_up_bias =
      Opened(checkpoint, stem + "gate_up_proj_bias", experts, 2 * d_ff);
  const StoredMatrix down_bias =
      Opened(checkpoint, stem + "down_proj_bias", experts, d_model);
  std::vector<Expert> result;
  for (int64_t e = 0; e < experts; ++e) {
    result.push_back({.gate = gate_up[e].Rows(0, d_ff, 2),
                      .up = gate_up[e].Rows(1, d_ff, 2),
                      .down = down[e],
                      .gate_bias = RowOf(gate_up_bias.Cols(0, d_ff, 2), e),
                      .up_bias = RowOf(gate_up_bias.Cols(1, d_ff, 2), e),
                      .down_bias = RowOf(down_bias, e)});
  }
  return result;
}

std::vector<Expert> Dbrx(const Checkpoint& checkpoint,
                         const std::string& prefix, Shape shape) {
  const auto& [experts, d_model, d_ff] = shape;
  const auto open = [&, rows = experts * d_ff,
                     cols = d_model](const char* name) {
    return Opened(checkpoint, absl::StrCat(prefix, ".experts.mlp.", name), rows,
                  cols);
  };
  const StoredMatrix gate = open("w1");
  const StoredMatrix up = open("v1");
  const StoredMatrix down = open("w2");
  std::vector<Expert> result;
  for (int64_t e = 0; e < experts; ++e) {
    result.push_back({.gate = gate.Rows(e * d_ff, d_ff),
                      .up = up.Rows(e * d_ff, d_ff),
                      .down = down.Rows(e * d_ff, d_ff).Transposed()});
  }
  return result;
}

struct GoldenLayer {
  std::string name;  // the case's folder
  std::string prefix;
  int layer;
  Shape shape;
  Layout layout;
  // A further expert that every row visits, "PREFIX.SHARED.gate_proj", ...
  std::string shared = "";
  int64_t shared_d_ff = 0;
  std::string shared_gate = "";  // if any, its output is times sigmoid(gate x)
  double (*product)(double, double) = SiluProduct;
  bool weight_on_input = false;
};

void PrintTo(const GoldenLayer& layer, std::ostream* out) {
  *out << layer.name;
}

class GoldenLayoutTest : public ::testing::TestWithParam<GoldenLayer> {};

TEST_P(GoldenLayoutTest, GivesTheRecordedOutput) {
  const GoldenLayer& param = GetParam();
  MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                           Checkpoint::Open(Folder(param.name)));
  MOE_ASSERT_OK_AND_ASSIGN(
      const SafetensorsFile vectors,
      SafetensorsFile::Open(Folder(param.name) + "/vectors.safetensors"));
  const std::vector<Expert> experts =
      param.layout(checkpoint, param.prefix, param.shape);
  ASSERT_FALSE(HasFailure());
  std::vector<Expert> shared;
  if (!param.shared.empty()) {
    const std::string stem = absl::StrCat(param.prefix, ".", param.shared);
    const int64_t d_model = param.shape.d_model;
    const int64_t d_ff = param.shared_d_ff;
    shared.push_back(
        {.gate = Opened(checkpoint, stem + ".gate_proj.weight", d_ff, d_model),
         .up = Opened(checkpoint, stem + ".up_proj.weight", d_ff, d_model),
         .down =
             Opened(checkpoint, stem + ".down_proj.weight", d_model, d_ff)});
  }

  const auto vector = [&](absl::string_view name) {
    const TensorInfo* tensor =
        vectors.Find(absl::StrCat("layers.", param.layer, ".", name));
    EXPECT_NE(tensor, nullptr) << name;
    return *tensor;
  };
  const auto rows_of = [](const TensorInfo& tensor) {
    return StoredMatrix{.rows = tensor.shape[0],
                        .cols = tensor.shape[1],
                        .data = tensor.bytes.data(),
                        .row_stride = tensor.shape[1]};
  };
  const TensorInfo ids = vector("topk_ids");
  const TensorInfo hidden_states = vector("hidden_states");
  const TensorInfo output = vector("output");
  const TensorInfo weights = vector("topk_weights");
  const int64_t top_k = ids.shape[1];

  for (int64_t token = 0; token < hidden_states.shape[0]; ++token) {
    const Row x = RowOf(rows_of(hidden_states), token);
    const Row want = RowOf(rows_of(output), token);
    Row got(x.size());
    const auto add = [&](const Row& y, double weight) {
      for (size_t i = 0; i < got.size(); ++i) got[i] += weight * y[i];
    };
    for (const Expert& expert : shared) {
      double weight = 1;
      if (!param.shared_gate.empty()) {
        const StoredMatrix gate = Opened(
            checkpoint, absl::StrCat(param.prefix, ".", param.shared_gate), 1,
            param.shape.d_model);
        weight = 1 / (1 + std::exp(-Apply(gate, x)[0]));
      }
      add(expert.Forward(x, param.product), weight);
    }
    for (int64_t k = 0; k < top_k; ++k) {
      const auto id =
          LoadUnaligned<int64_t>(ids.bytes.data() + (token * top_k + k) * 8);
      const double weight =
          RowOf(rows_of(weights), token)[static_cast<size_t>(k)];
      if (id >= param.shape.experts) {
        add(x, weight);  // an identity expert
      } else if (param.weight_on_input) {
        Row scaled = x;
        for (double& value : scaled) value *= weight;
        add(experts[static_cast<size_t>(id)].Forward(scaled, param.product), 1);
      } else {
        add(experts[static_cast<size_t>(id)].Forward(x, param.product), weight);
      }
    }
    double largest = 0;
    for (const double value : want) {
      largest = std::max(largest, std::abs(value));
    }
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 2e-6 * largest + 1e-7)
          << "token " << token << ", column " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenLayoutTest,
    ::testing::Values(
        GoldenLayer{"mixtral-a",
                    "model.layers.1.block_sparse_moe",
                    1,
                    {8, 64, 32},
                    W123},
        GoldenLayer{
            "olmoe-a", "model.layers.0.mlp", 0, {16, 64, 24}, Projections},
        GoldenLayer{"jamba-a",
                    "model.layers.1.feed_forward",
                    1,
                    {8, 64, 32},
                    Projections},
        GoldenLayer{"granitemoe-a",
                    "model.layers.1.block_sparse_moe",
                    1,
                    {8, 64, 32},
                    Granite},
        GoldenLayer{"qwen3_vl_moe-a",
                    "model.language_model.layers.0.mlp",
                    0,
                    {12, 64, 24},
                    PackedInOut},
        GoldenLayer{.name = "qwen3_5_moe-a",
                    .prefix = "model.language_model.layers.0.mlp",
                    .layer = 0,
                    .shape = {12, 64, 24},
                    .layout = PackedOutIn,
                    .shared = "shared_expert",
                    .shared_d_ff = 24,
                    .shared_gate = "shared_expert_gate.weight"},
        GoldenLayer{.name = "llama4-a",
                    .prefix = "language_model.model.layers.1.feed_forward",
                    .layer = 1,
                    .shape = {4, 64, 32},
                    .layout = PackedInOut,
                    .shared = "shared_expert",
                    .shared_d_ff = 32,
                    .weight_on_input = true},
        GoldenLayer{.name = "gpt_oss-a",
                    .prefix = "model.layers.1.mlp",
                    .layer = 1,
                    .shape = {8, 64, 32},
                    .layout = GptOss,
                    .product = ClampedProduct},
        GoldenLayer{.name = "gpt_oss_mxfp4-a",
                    .prefix = "model.layers.1.mlp",
                    .layer = 1,
                    .shape = {6, 128, 64},
                    .layout = GptOss,
                    .product = ClampedProduct},
        GoldenLayer{"dbrx-a", "transformer.blocks.1.ffn", 1, {8, 64, 32}, Dbrx},
        GoldenLayer{"longcat_flash-a",
                    "model.layers.0.mlp",
                    0,
                    {8, 64, 24},
                    Projections},
        GoldenLayer{"deepseek_v3_fp8-a",
                    "model.layers.1.mlp",
                    1,
                    {6, 192, 40},
                    Projections,
                    "shared_experts",
                    160},
        GoldenLayer{"kimi_k2-a",
                    "model.layers.1.mlp",
                    1,
                    {16, 136, 24},
                    Projections,
                    "shared_experts",
                    24}),
    [](const ::testing::TestParamInfo<GoldenLayer>& param) {
      std::string name = param.param.name;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(GoldenLayoutsTest, Gpt2IsStoredInOut) {
  MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                           Checkpoint::Open(Folder("gpt2-a")));
  MOE_ASSERT_OK_AND_ASSIGN(
      const SafetensorsFile vectors,
      SafetensorsFile::Open(Folder("gpt2-a") + "/vectors.safetensors"));
  const std::string stem = checkpoint.Contains("h.0.mlp.c_fc.weight")
                               ? "h.0.mlp."
                               : "transformer.h.0.mlp.";
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix up,
                           OpenMatrix(checkpoint, stem + "c_fc.weight", 128, 32,
                                      StoredOrder::kInOut));
  MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix down,
                           OpenMatrix(checkpoint, stem + "c_proj.weight", 32,
                                      128, StoredOrder::kInOut));
  MOE_ASSERT_OK_AND_ASSIGN(const std::vector<float> up_bias,
                           ReadVector(checkpoint, stem + "c_fc.bias", 128));
  MOE_ASSERT_OK_AND_ASSIGN(const std::vector<float> down_bias,
                           ReadVector(checkpoint, stem + "c_proj.bias", 32));
  const auto rows = [&](const char* name) {
    return StoredMatrix{.rows = 13,
                        .cols = 32,
                        .data = vectors.Find(name)->bytes.data(),
                        .row_stride = 32};
  };
  for (int64_t token = 0; token < 13; ++token) {
    Row h = Apply(up, RowOf(rows("layers.0.hidden_states"), token),
                  Row(up_bias.begin(), up_bias.end()));
    for (double& z : h) {
      z = z / 2 *
          (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    }
    const Row got = Apply(down, h, Row(down_bias.begin(), down_bias.end()));
    const Row want = RowOf(rows("layers.0.output"), token);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-4);
    }
  }
}

TEST(GoldenLayoutsTest, EveryCaseOpensAndEveryMatrixReads) {
  int cases = 0;
  int matrices = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(MOE_GOLDEN_DIR)) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++cases;
    MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                             Checkpoint::Open(entry.path().string()));
    MOE_EXPECT_OK(
        SafetensorsFile::Open((entry.path() / "vectors.safetensors").string()));
    for (const TensorInfo* tensor : checkpoint.tensors()) {
      ASSERT_TRUE(tensor->dtype.has_value()) << tensor->name;
      if (tensor->shape.size() != 2 ||
          absl::StrContains(tensor->name, "scale")) {
        continue;
      }
      SCOPED_TRACE(tensor->name);
      MOE_ASSERT_OK_AND_ASSIGN(const StoredMatrix matrix,
                               OpenMatrix(checkpoint, tensor->name,
                                          tensor->shape[0], tensor->shape[1]));
      ++matrices;
      for (int64_t row = 0; row < matrix.rows; ++row) {
        for (const double value : RowOf(matrix, row)) {
          ASSERT_TRUE(std::isfinite(value));
        }
      }
    }
  }
  EXPECT_EQ(cases, 51);
  EXPECT_GT(matrices, 1000);
}

}  // namespace
}  // namespace moe
