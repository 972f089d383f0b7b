// A model with made-up weights.

#include <cmath>
#include <utility>

#include "experts/base/status_macros.h"
#include "experts/linear.h"
#include "router/models/assemble_model.h"
#include "router/models/model.h"

namespace moe {
namespace {

constexpr int64_t kDModel = 256;
constexpr int64_t kDFf = 128;
constexpr int64_t kNumExperts = 16;
constexpr int64_t kTopK = 4;

// Uniform in [-1, 1): the splitmix64 generator at position `index`. Integer
// arithmetic and one exact conversion: the same on every machine.
float Noise(uint64_t index) {
  uint64_t z = (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return static_cast<float>(static_cast<int64_t>(z >> 40) - (1 << 23)) *
         0x1p-23F;
}

// The experts of a layer, with made-up weights.
class DemoExperts {
 public:
  DemoExperts(const ExpertSpec& spec, int64_t num_experts, int layer) {
    for (int64_t e = 0; e < num_experts; ++e) {
      StoredExpert& expert = experts_.emplace_back();
      for (int p = 0; p < kNumProjections; ++p) {
        const bool down = static_cast<Projection>(p) == Projection::kDown;
        StoredMatrix& matrix = expert.weights[static_cast<size_t>(p)];
        matrix.rows = down ? spec.d_model : spec.d_ff;
        matrix.cols = down ? spec.d_ff : spec.d_model;
        matrix.row_stride = matrix.cols;
        const uint64_t first =
            ((static_cast<uint64_t>(layer) << 8 | static_cast<uint64_t>(e))
                 << 8 |
             static_cast<uint64_t>(p))
            << 40;
        matrix.data = Fill(first, matrix.rows, matrix.cols);
      }
    }
  }

  const std::vector<StoredExpert>& experts() const { return experts_; }

 private:
  const uint8_t* Fill(uint64_t first, int64_t rows, int64_t cols) {
    auto& memory = memory_.emplace_back(rows * cols);
    // Keeps the output at about the size of the input.
    const float scale = std::sqrt(3.0F / static_cast<float>(cols));
    for (int64_t row = 0; row < rows; ++row) {
      const uint64_t at = first | static_cast<uint64_t>(row) << 20;
      for (int64_t col = 0; col < cols; ++col) {
        memory[row * cols + col] =
            scale * Noise(at + static_cast<uint64_t>(col));
      }
    }
    return reinterpret_cast<const uint8_t*>(memory.data());
  }

  std::vector<StoredExpert> experts_;
  std::vector<AlignedBuffer<float>> memory_;  // of the matrices
};

Linear DemoGate(int layer) {
  AlignedBuffer<float> weights(kNumExperts * kDModel);
  const float scale = std::sqrt(3.0F / static_cast<float>(kDModel));
  const uint64_t first = (1ULL << 60) | static_cast<uint64_t>(layer) << 40;
  for (int64_t i = 0; i < weights.size(); ++i) {
    weights[i] = 4.0F * scale * Noise(first + static_cast<uint64_t>(i));
  }
  return Linear(ConstMatrix(weights.data(), kNumExperts, kDModel), {});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadDemoModel(const LoadOptions& options,
                                                     Executor& executor) {
  ModelSpec spec;
  spec.family = "demo";
  spec.d_model = kDModel;
  for (int index = 0; index < 3; ++index) {
    const bool dense = index == 2;
    LayerSpec& layer = spec.layers.emplace_back();
    layer.index = index;
    layer.d_model = kDModel;
    layer.experts.expert.d_model = kDModel;
    layer.experts.expert.d_ff = dense ? 2 * kDFf : kDFf;
    layer.experts.num_experts = dense ? 1 : kNumExperts;
    if (dense) continue;
    layer.rule.emplace();
    layer.rule->num_experts = kNumExperts;
    layer.rule->top_k = kTopK;
    layer.rule->renormalize = Renormalize::kSum;
    layer.gate = {.weight = {}, .bias = {}, .out = kNumExperts, .in = kDModel};
  }
  spec.num_layers = static_cast<int64_t>(spec.layers.size());
  MOE_ASSIGN_OR_RETURN(spec.layers,
                       ChooseLayers(std::move(spec.layers), options.layers));

  std::vector<OpenedLayer> opened;
  std::vector<DemoExperts> memory;
  for (const LayerSpec& layer : spec.layers) {
    OpenedLayer& open = opened.emplace_back();
    open.parts.rule = layer.rule;
    if (layer.rule.has_value()) open.parts.gate = DemoGate(layer.index);
    open.experts = memory
                       .emplace_back(layer.experts.expert,
                                     layer.experts.num_experts, layer.index)
                       .experts();
  }
  return AssembleModel(std::move(spec), std::move(opened), options, executor,
                       [](absl::Span<const StoredExpert>) {});
}

}  // namespace moe
