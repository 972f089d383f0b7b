#include "server/client/commands.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/safetensors.h"
#include "server/common/bytes_text.h"
#include "server/common/output_file.h"
#include "server/wire/tensor_codec.h"

namespace moe {
namespace {

constexpr int64_t kShownRows = 4;
constexpr int64_t kShownValues = 4;

DType ToDType(v1::DType dtype) {
  switch (dtype) {
    case v1::BF16:
      return DType::kBF16;
    case v1::F16:
      return DType::kF16;
    case v1::I32:
      return DType::kI32;
    default:
      return DType::kF32;
  }
}

// Standard normal values.
void FillRandom(int64_t tokens, int64_t d_model, const ForwardOptions& options,
                v1::Tensor& tensor) {
  std::mt19937_64 generator(options.seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(tokens * d_model));
  for (float& value : values) value = normal(generator);
  Encode(ConstMatrix(values.data(), tokens, d_model), options.dtype, tensor);
}

absl::Status FillFromFile(const std::string& path, v1::Tensor& tensor) {
  MOE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  const TensorInfo* input = file.Find("hidden_states");
  if (input == nullptr) {
    return absl::NotFoundError(
        "--input: want a tensor named hidden_states, found none");
  }
  if (input->dtype == DType::kF32) {
    tensor.set_dtype(v1::F32);
  } else if (input->dtype == DType::kBF16) {
    tensor.set_dtype(v1::BF16);
  } else if (input->dtype == DType::kF16) {
    tensor.set_dtype(v1::F16);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--input: hidden_states: want F32, BF16 or F16, got ",
                     input->TypeText()));
  }
  for (const int64_t extent : input->shape) tensor.add_shape(extent);
  tensor.set_data(input->bytes.data(), input->bytes.size());
  return absl::OkStatus();
}

absl::Status WriteOutput(const std::string& path,
                         const v1::ForwardResponse& response) {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const char* name, const v1::Tensor& tensor) {
    tensors.push_back({.name = name,
                       .dtype = ToDType(tensor.dtype()),
                       .shape = {tensor.shape().begin(), tensor.shape().end()},
                       .bytes = AsBytes(absl::MakeConstSpan(
                           tensor.data().data(), tensor.data().size()))});
  };
  add("output", response.output());
  if (response.has_expert_ids()) add("expert_ids", response.expert_ids());
  if (response.has_routing_weights()) {
    add("routing_weights", response.routing_weights());
  }
  MOE_ASSIGN_OR_RETURN(const SafetensorsParts file, LayOutSafetensors(tensors));
  std::vector<absl::string_view> parts = {file.header};
  for (const absl::Span<const uint8_t> bytes : file.data) {
    parts.emplace_back(reinterpret_cast<const char*>(bytes.data()),
                       bytes.size());
  }
  return WriteOutputFile("--output", path, parts);
}

absl::Status PrintForward(const v1::ForwardResponse& response,
                          absl::Duration elapsed) {
  MOE_ASSIGN_OR_RETURN(const FloatMatrix output, ToFloats(response.output()));
  absl::PrintF("output: %s [%d, %d] in %.3f ms",
               v1::DType_Name(response.output().dtype()), output.rows,
               output.cols, absl::ToDoubleMilliseconds(elapsed));
  if (response.has_timing()) {
    absl::PrintF(", queue %.3f ms, compute %.3f ms",
                 1e3 * response.timing().queue_seconds(),
                 1e3 * response.timing().compute_seconds());
  }
  absl::PrintF("\n");
  IdMatrix ids;
  FloatMatrix weights;
  if (response.has_expert_ids()) {
    MOE_ASSIGN_OR_RETURN(ids, ToIds(response.expert_ids()));
    MOE_ASSIGN_OR_RETURN(weights, ToFloats(response.routing_weights()));
    if (weights.rows != ids.rows || weights.cols != ids.cols) {
      return absl::InternalError(
          "response routing_weights: want the shape of expert_ids");
    }
  }
  for (int64_t row = 0; row < std::min(output.rows, kShownRows); ++row) {
    const float* y = output.view().Row(row);
    const int64_t shown = std::min(output.cols, kShownValues);
    absl::PrintF("token %d: [%s%s]", row,
                 absl::StrJoin(y, y + shown, ", ",
                               [](std::string* out, float value) {
                                 absl::StrAppendFormat(out, "%.6g", value);
                               }),
                 output.cols > shown ? ", ..." : "");
    if (ids.rows > row) {
      absl::PrintF("  experts");
      for (int64_t j = 0; j < ids.cols; ++j) {
        absl::PrintF(" %d (%.3f)",
                     ids.values[static_cast<size_t>(row * ids.cols + j)],
                     weights.view().Row(row)[j]);
      }
    }
    absl::PrintF("\n");
  }
  if (output.rows > kShownRows) {
    absl::PrintF("... %d more tokens\n", output.rows - kShownRows);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Info(const Connection& connection) {
  MOE_ASSIGN_OR_RETURN(const bool healthy, connection.Healthy());
  absl::PrintF("health: %s\n", healthy ? "SERVING" : "NOT_SERVING");
  MOE_ASSIGN_OR_RETURN(const v1::ListModelsResponse models,
                       connection.ListModels());
  for (const v1::ModelInfo& model : models.models()) {
    absl::PrintF(
        "model %s: family %s, d_model %d, %d layers, %s of weights (%s)\n",
        model.name(), model.family(), model.d_model(), model.layers_size(),
        BytesText(static_cast<double>(model.weights_bytes())),
        model.weight_format());
    absl::PrintF("  limits: %d tokens a request, %s a message\n",
                 model.max_request_tokens(),
                 BytesText(static_cast<double>(model.max_message_bytes())));
    for (const v1::ShardInfo& shard : model.shards()) {
      absl::PrintF("  shard %s: %s\n", shard.name(),
                   shard.up() ? "up" : "DOWN, requests that need it fail");
    }
    for (const v1::LayerInfo& layer : model.layers()) {
      if (layer.dense()) {
        absl::PrintF("  layer %d: dense, d_ff %d, %d parameters\n",
                     layer.layer(), layer.d_ff(), layer.parameters());
        continue;
      }
      absl::PrintF(
          "  layer %d: %d experts%s, top-%d, d_ff %d%s, %d parameters\n",
          layer.layer(), layer.num_experts(),
          layer.held_experts() > 0
              ? absl::StrCat(" (", layer.held_experts(), " here)")
              : "",
          layer.top_k(), layer.d_ff(),
          layer.shared_d_ff() > 0
              ? absl::StrCat(", shared expert d_ff ", layer.shared_d_ff())
              : "",
          layer.parameters());
    }
  }
  if (models.models().empty()) absl::PrintF("no models\n");
  return absl::OkStatus();
}

absl::Status Forward(const Connection& connection,
                     const ForwardOptions& options) {
  v1::ForwardRequest request;
  request.set_model(options.model);
  request.set_layer(options.layer);
  request.set_return_routing(true);
  if (!options.input.empty()) {
    MOE_RETURN_IF_ERROR(
        FillFromFile(options.input, *request.mutable_hidden_states()));
  } else {
    MOE_ASSIGN_OR_RETURN(const v1::ModelInfo model,
                         connection.GetModel(options.model));
    MOE_RETURN_IF_ERROR(CheckTokens("--random", options.random_tokens, model));
    FillRandom(options.random_tokens, model.d_model(), options,
               *request.mutable_hidden_states());
  }
  const absl::Time start = absl::Now();
  MOE_ASSIGN_OR_RETURN(const v1::ForwardResponse response,
                       connection.Forward(request));
  MOE_RETURN_IF_ERROR(PrintForward(response, absl::Now() - start));
  if (options.output.empty()) return absl::OkStatus();
  return WriteOutput(options.output, response);
}

}  // namespace moe
