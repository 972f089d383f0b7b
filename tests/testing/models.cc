#include "tests/testing/models.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "experts/base/check.h"
#include "router/models/model.h"
#include "router/models/model_spec.h"
#include "tests/testing/reference_moe.h"

namespace moe {

TestTensor& Parts::Tensor(absl::string_view name) {
  const auto found = std::find_if(
      tensors.begin(), tensors.end(),
      [&](const TestTensor& tensor) { return tensor.name == name; });
  MOE_CHECK(found != tensors.end());
  return *found;
}

void Parts::Remove(absl::string_view name) {
  const TestTensor* tensor = &Tensor(name);
  tensors.erase(tensors.begin() + (tensor - tensors.data()));
}

void Parts::Rename(absl::string_view from, absl::string_view to) {
  for (TestTensor& tensor : tensors) {
    tensor.name = absl::StrReplaceAll(tensor.name, {{from, to}});
  }
}

Parts GoldenParts(absl::string_view name) {
  const std::string folder = absl::StrCat(MOE_GOLDEN_DIR, "/", name);
  Parts parts;
  parts.config = nlohmann::json::parse(
      TempFolder::Contents(absl::StrCat(folder, "/config.json")));
  const auto checkpoint = Checkpoint::Open(folder);
  MOE_CHECK(checkpoint.ok());
  for (const TensorInfo* tensor : checkpoint->tensors()) {
    parts.tensors.push_back({tensor->name,
                             *tensor->dtype,
                             tensor->shape,
                             {tensor->bytes.begin(), tensor->bytes.end()}});
  }
  return parts;
}

absl::StatusOr<std::vector<float>> Answers(const Checkpoint& checkpoint) {
  constexpr int64_t kTokens = 5;
  Executor executor(1);
  ExpertWorkspace expert_workspace(&executor);
  LayerWorkspace workspace(&expert_workspace);
  MOE_ASSIGN_OR_RETURN(const std::vector<ModelSpec> specs,
                       DescribeModels(checkpoint));
  std::vector<float> responses;
  for (const ModelSpec& spec : specs) {
    MOE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Model> model,
        LoadModel(checkpoint, spec,
                  {.weight_format = WeightFormat::kF32, .layers = {}}, executor,
                  [](const LoadProgress&) {}));
    for (const ModelLayer& layer : model->layers()) {
      const int64_t d_model = spec.d_model;
      const auto x = RandomFloats(kTokens * d_model, 2.0F, 3);
      std::vector<float> y(x.size());
      ForwardStats stats;
      MOE_RETURN_IF_ERROR(layer.ffn->Forward(
          ConstMatrix(x.data(), kTokens, d_model), nullptr, workspace,
          Matrix(y.data(), kTokens, d_model), stats));
      responses.insert(responses.end(), y.begin(), y.end());
    }
  }
  return responses;
}

}  // namespace moe
