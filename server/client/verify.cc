#include "server/client/verify.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "experts/base/dtype.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/safetensors.h"

namespace moe {
namespace {

// What the file says of one layer; pointers are null where it has nothing.
struct LayerVectors {
  const TensorInfo* hidden_states = nullptr;
  const TensorInfo* output = nullptr;
  const TensorInfo* router_logits = nullptr;
  const TensorInfo* ids = nullptr;
  const TensorInfo* weights = nullptr;
  const TensorInfo* tie = nullptr;
};

// (side, layer): side is "", "encoder" or "decoder".
using LayerKey = std::pair<std::string, int>;

std::map<LayerKey, LayerVectors> FindLayers(const SafetensorsFile& file) {
  std::map<LayerKey, LayerVectors> layers;
  for (const TensorInfo& tensor : file.tensors()) {
    absl::string_view name = tensor.name;
    std::string side;
    for (const char* candidate : {"encoder", "decoder"}) {
      if (absl::ConsumePrefix(&name, absl::StrCat(candidate, "."))) {
        side = candidate;
      }
    }
    const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
    int layer = 0;
    if (parts.size() != 3 || parts[0] != "layers" ||
        !absl::SimpleAtoi(parts[1], &layer)) {
      continue;
    }
    LayerVectors& vectors = layers[{side, layer}];
    const std::pair<absl::string_view, const TensorInfo**> fields[] = {
        {"hidden_states", &vectors.hidden_states}, {"output", &vectors.output},
        {"router_logits", &vectors.router_logits}, {"topk_ids", &vectors.ids},
        {"topk_weights", &vectors.weights},        {"tie", &vectors.tie},
    };
    for (const auto& [field, place] : fields) {
      if (parts[2] == field) *place = &tensor;
    }
  }
  return layers;
}

// [rows, cols] of F32.
absl::StatusOr<FloatMatrix> Floats(const TensorInfo& tensor) {
  if (tensor.dtype != DType::kF32 || tensor.shape.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.name, ": want an F32 matrix, got ", tensor.TypeText()));
  }
  FloatMatrix matrix{.rows = tensor.shape[0], .cols = tensor.shape[1]};
  matrix.values.resize(static_cast<size_t>(tensor.elements()));
  std::memcpy(matrix.values.data(), tensor.bytes.data(), tensor.bytes.size());
  return matrix;
}

absl::StatusOr<IdMatrix> Ids(const TensorInfo& tensor) {
  if (tensor.dtype != DType::kI64 || tensor.shape.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.name, ": want an I64 matrix, got ", tensor.TypeText()));
  }
  IdMatrix matrix{.rows = tensor.shape[0], .cols = tensor.shape[1]};
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    matrix.values.push_back(static_cast<int32_t>(
        LoadUnaligned<int64_t>(tensor.bytes.data() + 8 * i)));
  }
  return matrix;
}

void FillTensor(const FloatMatrix& matrix, v1::Tensor& tensor) {
  tensor.set_dtype(v1::F32);
  tensor.add_shape(matrix.rows);
  tensor.add_shape(matrix.cols);
  tensor.set_data(matrix.values.data(), matrix.values.size() * sizeof(float));
}

// The largest error as a multiple of its tolerance, and as a plain figure for
// people: relative to the row.
struct Error {
  double of_tolerance = 0;
  double shown = 0;

  void Add(double error, double tolerance, double scale) {
    // A NaN on either side is an error without bound.
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    of_tolerance = std::max(of_tolerance, error / tolerance);
    if (scale > 0) shown = std::max(shown, error / scale);
  }
  void Merge(const Error& other) {
    of_tolerance = std::max(of_tolerance, other.of_tolerance);
    shown = std::max(shown, other.shown);
  }
  bool ok() const { return of_tolerance <= 1; }
};

bool SameShape(const FloatMatrix& a, const FloatMatrix& b) {
  return a.rows == b.rows && a.cols == b.cols;
}

// Adds the errors of one row, measured against its largest value:
// |got - want| <= relative * (offset + max|want|) + absolute.
void AddRow(const float* got, const float* want, int64_t size, double relative,
            double offset, double absolute, Error& error) {
  double largest = 0;
  for (int64_t c = 0; c < size; ++c) {
    largest = std::max(largest, std::fabs(static_cast<double>(want[c])));
  }
  for (int64_t c = 0; c < size; ++c) {
    error.Add(std::fabs(static_cast<double>(got[c]) - want[c]),
              relative * (offset + largest) + absolute, offset + largest);
  }
}

struct LayerResult {
  bool routed = false;
  int64_t rows = 0;
  int64_t wrong_ids = 0;  // rows
  Error logits;
  Error weights;
  Error output;

  bool ok() const {
    return wrong_ids == 0 && logits.ok() && weights.ok() && output.ok();
  }
};

void CompareRouting(const IdMatrix& got_ids, const IdMatrix& want_ids,
                    const FloatMatrix& got_weights,
                    const FloatMatrix& want_weights, const TensorInfo* tie,
                    LayerResult& result) {
  const auto k = static_cast<size_t>(want_ids.cols);
  for (size_t row = 0; row < static_cast<size_t>(want_ids.rows); ++row) {
    const size_t at = row * k;
    std::vector<float> got(got_weights.values.begin() + at,
                           got_weights.values.begin() + at + k);
    std::vector<float> want(want_weights.values.begin() + at,
                            want_weights.values.begin() + at + k);
    if (tie != nullptr && tie->bytes[row] != 0) {
      std::sort(got.begin(), got.end());
      std::sort(want.begin(), want.end());
    } else if (!std::equal(got_ids.values.begin() + at,
                           got_ids.values.begin() + at + k,
                           want_ids.values.begin() + at)) {
      ++result.wrong_ids;
    }
    for (size_t j = 0; j < k; ++j) {
      const double size = std::fabs(static_cast<double>(want[j]));
      result.weights.Add(std::fabs(static_cast<double>(got[j]) - want[j]),
                         1e-5 * size + 1e-6, size);
    }
  }
}

absl::Status CheckOutput(const v1::ForwardResponse& response,
                         const LayerVectors& vectors, double tolerance,
                         LayerResult& result) {
  MOE_ASSIGN_OR_RETURN(const FloatMatrix want, Floats(*vectors.output));
  MOE_ASSIGN_OR_RETURN(const FloatMatrix got, ToFloats(response.output()));
  if (!SameShape(want, got)) {
    return absl::InternalError("output: the shape differs");
  }
  for (int64_t row = 0; row < want.rows; ++row) {
    AddRow(got.view().Row(row), want.view().Row(row), want.cols, tolerance, 0,
           1e-6, result.output);
  }
  return absl::OkStatus();
}

absl::Status CheckRouting(const v1::ForwardResponse& response,
                          const LayerVectors& vectors, LayerResult& result) {
  MOE_ASSIGN_OR_RETURN(const IdMatrix want_ids, Ids(*vectors.ids));
  MOE_ASSIGN_OR_RETURN(const IdMatrix got_ids, ToIds(response.expert_ids()));
  MOE_ASSIGN_OR_RETURN(const FloatMatrix want_weights,
                       Floats(*vectors.weights));
  MOE_ASSIGN_OR_RETURN(const FloatMatrix got_weights,
                       ToFloats(response.routing_weights()));
  if (!SameShape(want_weights, got_weights) || want_ids.cols != got_ids.cols ||
      want_ids.rows != got_ids.rows) {
    return absl::InternalError("routing: the shape differs");
  }
  result.routed = true;
  CompareRouting(got_ids, want_ids, got_weights, want_weights, vectors.tie,
                 result);
  return absl::OkStatus();
}

absl::Status CheckLogits(const v1::RouteResponse& response,
                         const LayerVectors& vectors, LayerResult& result) {
  MOE_ASSIGN_OR_RETURN(const FloatMatrix want, Floats(*vectors.router_logits));
  MOE_ASSIGN_OR_RETURN(const FloatMatrix got,
                       ToFloats(response.router_logits()));
  if (!SameShape(want, got)) {
    return absl::InternalError("router_logits: the shape differs");
  }
  for (int64_t row = 0; row < want.rows; ++row) {
    AddRow(got.view().Row(row), want.view().Row(row), want.cols, 1e-5, 1, 0,
           result.logits);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerResult> VerifyLayer(const Connection& connection,
                                        const std::string& model, int layer,
                                        const LayerVectors& vectors,
                                        double output_tolerance) {
  if (vectors.hidden_states == nullptr || vectors.output == nullptr) {
    return absl::InvalidArgumentError(
        "vectors: want hidden_states and output for each layer");
  }
  LayerResult result;
  MOE_ASSIGN_OR_RETURN(const FloatMatrix input, Floats(*vectors.hidden_states));
  result.rows = input.rows;
  v1::ForwardRequest request;
  request.set_model(model);
  request.set_layer(layer);
  request.set_return_routing(true);
  FillTensor(input, *request.mutable_hidden_states());
  MOE_ASSIGN_OR_RETURN(const v1::ForwardResponse response,
                       connection.Forward(request));
  MOE_RETURN_IF_ERROR(CheckOutput(response, vectors, output_tolerance, result));
  if (vectors.ids != nullptr && vectors.weights != nullptr) {
    MOE_RETURN_IF_ERROR(CheckRouting(response, vectors, result));
  }
  if (vectors.router_logits != nullptr) {
    v1::RouteRequest route;
    route.set_model(model);
    route.set_layer(layer);
    route.set_return_router_logits(true);
    *route.mutable_hidden_states() = request.hidden_states();
    MOE_ASSIGN_OR_RETURN(const v1::RouteResponse routed,
                         connection.Route(route));
    MOE_RETURN_IF_ERROR(CheckLogits(routed, vectors, result));
  }
  return result;
}

}  // namespace

absl::StatusOr<bool> Verify(const Connection& connection,
                            const std::string& model,
                            const std::string& vectors_file,
                            double output_tolerance) {
  MOE_ASSIGN_OR_RETURN(const SafetensorsFile file,
                       SafetensorsFile::Open(vectors_file));
  const std::map<LayerKey, LayerVectors> layers = FindLayers(file);
  if (layers.empty()) {
    return absl::InvalidArgumentError(
        "vectors: want tensors named layers.L.hidden_states, found none");
  }
  size_t passed = 0;
  Error logits;
  Error weights;
  Error output;
  bool routed = false;
  for (const auto& [key, vectors] : layers) {
    const auto& [side, layer] = key;
    const std::string name =
        side.empty() ? model : absl::StrCat(model, ".", side);
    MOE_ASSIGN_OR_RETURN(
        const LayerResult result,
        VerifyLayer(connection, name, layer, vectors, output_tolerance));
    std::string line =
        absl::StrFormat("%s layer %d: %d rows", name, layer, result.rows);
    if (result.routed) {
      absl::StrAppendFormat(
          &line, ", ids wrong in %d, logits %.1e, weights %.1e",
          result.wrong_ids, result.logits.shown, result.weights.shown);
    }
    absl::PrintF("%s, output %.1e  %s\n", line, result.output.shown,
                 result.ok() ? "PASS" : "FAIL");
    if (result.ok()) ++passed;
    routed = routed || result.routed;
    logits.Merge(result.logits);
    weights.Merge(result.weights);
    output.Merge(result.output);
  }
  std::string errors = absl::StrFormat("output %.1e", output.shown);
  if (routed) {
    absl::StrAppendFormat(&errors, ", logits %.1e, weights %.1e", logits.shown,
                          weights.shown);
  }
  const bool pass = passed == layers.size();
  absl::PrintF("%s: %d of %d layers; largest errors, relative to the row: %s\n",
               pass ? "PASS" : "FAIL", passed, layers.size(), errors);
  return pass;
}

}  // namespace moe
