// From the description of a model to the model in memory.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/stored_matrix.h"
#include "router/model.h"

namespace moe {
namespace {

// The name of a tensor of expert `e`.
std::string ExpertTensor(absl::string_view pattern, int64_t e) {
  return absl::StrReplaceAll(pattern, {{"{E}", absl::StrCat(e)}});
}

// One set of experts as it lies in a checkpoint.
class CheckpointExperts final : public ExpertSource {
 public:
  // Finds and checks every tensor of the set; reads nothing.
  static absl::StatusOr<CheckpointExperts> Open(const Checkpoint& checkpoint,
                                                const ExpertSetSpec& set) {
    CheckpointExperts source;
    source.experts_.resize(static_cast<size_t>(set.num_experts));
    for (int64_t e = 0; e < set.num_experts; ++e) {
      Tensors& tensors = source.experts_[static_cast<size_t>(e)];
      for (size_t p = 0; p < kNumProjections; ++p) {
        const auto projection = static_cast<Projection>(p);
        if (projection == Projection::kGate && !set.expert.gated) continue;
        const bool down = projection == Projection::kDown;
        const int64_t rows = down ? set.expert.d_model : set.expert.d_ff;
        const int64_t cols = down ? set.expert.d_ff : set.expert.d_model;
        MOE_ASSIGN_OR_RETURN(
            tensors.weights[p],
            OpenMatrix(checkpoint, ExpertTensor(set.weights[p], e), rows,
                       cols));
        source.bytes_ += tensors.weights[p].bytes();
        if (!set.expert.has_bias) continue;
        MOE_ASSIGN_OR_RETURN(
            tensors.biases[p],
            ReadVector(checkpoint, ExpertTensor(set.biases[p], e), rows));
      }
    }
    return source;
  }

  // Of the weights, in the checkpoint.
  int64_t bytes() const { return bytes_; }

  void ReadRow(int64_t expert, Projection projection, int64_t row,
               absl::Span<float> out) const override {
    experts_[static_cast<size_t>(expert)]
        .weights[static_cast<size_t>(projection)]
        .Read(row, 0, out);
  }

  void ReadBias(int64_t expert, Projection projection,
                absl::Span<float> out) const override {
    const std::vector<float>& bias =
        experts_[static_cast<size_t>(expert)]
            .biases[static_cast<size_t>(projection)];
    std::copy(bias.begin(), bias.end(), out.begin());
  }

  // Gives back the page cache of what has been read.
  void DropPages(const Checkpoint& checkpoint) const {
    for (const Tensors& tensors : experts_) {
      for (const StoredMatrix& matrix : tensors.weights) {
        if (matrix.data != nullptr) checkpoint.DropPages(matrix.stored_bytes());
      }
    }
  }

 private:
  struct Tensors {
    std::array<StoredMatrix, kNumProjections> weights;
    std::array<std::vector<float>, kNumProjections> biases;
  };
  std::vector<Tensors> experts_;
  int64_t bytes_ = 0;
};

absl::StatusOr<Gate> LoadGate(const Checkpoint& checkpoint,
                              absl::string_view name, int64_t outputs,
                              int64_t d_model) {
  MOE_ASSIGN_OR_RETURN(const StoredMatrix stored,
                       OpenMatrix(checkpoint, name, outputs, d_model));
  AlignedBuffer<float> weights(outputs * d_model);
  for (int64_t row = 0; row < outputs; ++row) {
    stored.Read(row, 0,
                absl::MakeSpan(weights.data() + row * d_model,
                               static_cast<size_t>(d_model)));
  }
  return Gate(ConstMatrix(weights.data(), outputs, d_model), {});
}

// The sets of experts of a layer, opened.
struct OpenedLayer {
  const LayerSpec* spec;
  CheckpointExperts experts;
  std::optional<CheckpointExperts> shared_expert;

  int64_t bytes() const {
    return experts.bytes() + (shared_expert ? shared_expert->bytes() : 0);
  }
};

absl::StatusOr<OpenedLayer> OpenLayer(const Checkpoint& checkpoint,
                                      const LayerSpec& spec) {
  MOE_ASSIGN_OR_RETURN(CheckpointExperts experts,
                       CheckpointExperts::Open(checkpoint, spec.experts));
  OpenedLayer layer{&spec, std::move(experts), std::nullopt};
  if (spec.shared_expert.has_value()) {
    MOE_ASSIGN_OR_RETURN(
        layer.shared_expert,
        CheckpointExperts::Open(checkpoint, *spec.shared_expert));
  }
  return layer;
}

// The layers of `all` that were asked for.
absl::StatusOr<std::vector<LayerSpec>> ChooseLayers(
    std::vector<LayerSpec> all, const std::vector<int>& wanted) {
  if (wanted.empty()) return all;
  std::vector<LayerSpec> chosen;
  for (const int index : wanted) {
    const auto found = std::find_if(
        all.begin(), all.end(),
        [&](const LayerSpec& layer) { return layer.index == index; });
    if (found == all.end()) {
      return absl::NotFoundError(absl::StrCat(
          "layers: want indices of FFN layers, from ", all.front().index,
          " to ", all.back().index, "; got ", index));
    }
    chosen.push_back(*found);
  }
  std::sort(
      chosen.begin(), chosen.end(),
      [](const LayerSpec& a, const LayerSpec& b) { return a.index < b.index; });
  return chosen;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const Checkpoint& checkpoint, const LoadOptions& options,
    Executor& executor, ExpertWorkspace* workspace,
    absl::FunctionRef<void(const LoadProgress&)> progress) {
  MOE_ASSIGN_OR_RETURN(ModelSpec spec, DescribeModel(checkpoint));
  MOE_ASSIGN_OR_RETURN(spec.layers,
                       ChooseLayers(std::move(spec.layers), options.layers));

  // Every tensor is found and checked before the first is read: a checkpoint
  // that does not fit its config is refused at once.
  std::vector<OpenedLayer> opened;
  LoadProgress bytes;
  for (const LayerSpec& layer : spec.layers) {
    MOE_ASSIGN_OR_RETURN(OpenedLayer open, OpenLayer(checkpoint, layer));
    bytes.total_bytes += open.bytes();
    opened.push_back(std::move(open));
  }

  int64_t weights_bytes = 0;
  const auto load_set = [&](const ExpertSetSpec& set,
                            const CheckpointExperts& source) {
    auto shard = LocalExpertShard::Load(set.expert, set.num_experts,
                                        options.weight_format, source, executor,
                                        workspace);
    source.DropPages(checkpoint);
    weights_bytes += shard->weights_bytes();
    bytes.done_bytes += source.bytes();
    progress(bytes);
    return shard;
  };
  std::vector<ModelLayer> layers;
  for (OpenedLayer& open : opened) {
    FfnLayerParts parts;
    if (open.spec->rule.has_value()) {
      MOE_ASSIGN_OR_RETURN(
          parts.gate, LoadGate(checkpoint, open.spec->gate_weight,
                               open.spec->rule->num_experts, spec.d_model));
      weights_bytes += parts.gate->weights_bytes();
      parts.rule = open.spec->rule;
    }
    parts.experts = load_set(open.spec->experts, open.experts);
    if (open.shared_expert.has_value()) {
      parts.shared_expert =
          load_set(*open.spec->shared_expert, *open.shared_expert);
    }
    layers.push_back(
        {open.spec->index, std::make_unique<FfnLayer>(std::move(parts))});
  }
  return std::make_unique<Model>(std::move(spec), std::move(layers),
                                 weights_bytes);
}

}  // namespace moe
