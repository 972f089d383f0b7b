// A model with made-up weights.

#include <cmath>
#include <utility>

#include "router/model.h"

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

class DemoExperts final : public ExpertSource {
 public:
  explicit DemoExperts(int layer) : layer_(layer) {}

  void ReadRow(int64_t expert, Projection projection, int64_t row,
               absl::Span<float> out) const override {
    // Keeps the output at about the size of the input.
    const float scale = std::sqrt(3.0F / static_cast<float>(out.size()));
    const uint64_t first =
        ((static_cast<uint64_t>(layer_) << 8 | static_cast<uint64_t>(expert))
             << 8 |
         static_cast<uint64_t>(projection))
            << 40 |
        static_cast<uint64_t>(row) << 20;
    for (size_t i = 0; i < out.size(); ++i) out[i] = scale * Noise(first + i);
  }
  void ReadBias(int64_t, Projection, absl::Span<float>) const override {}

 private:
  const int layer_;
};

Gate DemoGate(int layer) {
  AlignedBuffer<float> weights(kNumExperts * kDModel);
  const float scale = std::sqrt(3.0F / static_cast<float>(kDModel));
  const uint64_t first = (1ULL << 60) | static_cast<uint64_t>(layer) << 40;
  for (int64_t i = 0; i < weights.size(); ++i) {
    weights[i] = 4.0F * scale * Noise(first + static_cast<uint64_t>(i));
  }
  return Gate(ConstMatrix(weights.data(), kNumExperts, kDModel), {});
}

}  // namespace

std::unique_ptr<Model> MakeDemoModel(Executor& executor,
                                     ExpertWorkspace* workspace) {
  ModelSpec spec;
  spec.family = "demo";
  spec.d_model = kDModel;
  std::vector<ModelLayer> layers;
  int64_t weights_bytes = 0;
  for (int index = 0; index < 3; ++index) {
    const bool dense = index == 2;
    LayerSpec layer;
    layer.index = index;
    layer.experts.expert.d_model = kDModel;
    layer.experts.expert.d_ff = dense ? 2 * kDFf : kDFf;
    layer.experts.num_experts = dense ? 1 : kNumExperts;
    FfnLayerParts parts;
    if (!dense) {
      layer.rule.emplace();
      layer.rule->num_experts = kNumExperts;
      layer.rule->top_k = kTopK;
      layer.rule->renormalize = Renormalize::kSum;
      parts.rule = layer.rule;
      parts.gate = DemoGate(index);
      weights_bytes += parts.gate->weights_bytes();
    }
    auto shard = LocalExpertShard::Load(
        layer.experts.expert, layer.experts.num_experts, WeightFormat::kF32,
        DemoExperts(index), executor, workspace);
    weights_bytes += shard->weights_bytes();
    parts.experts = std::move(shard);
    layers.push_back({index, std::make_unique<FfnLayer>(std::move(parts))});
    spec.layers.push_back(std::move(layer));
  }
  return std::make_unique<Model>(std::move(spec), std::move(layers),
                                 weights_bytes);
}

}  // namespace moe
