#include "server/open_inference/infer_request.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experts/base/status_macros.h"
#include "server/wire/grpc_status.h"

namespace moe {
namespace {

using inference::InferParameter;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using Elements = inference::InferTensorContents;

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Text from outside, as it comes back in messages.
std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text.substr(0, 64)), "\"");
}

struct NamedType {
  absl::string_view name;
  v1::DType dtype;
};
constexpr NamedType kTypes[] = {{"FP32", v1::F32},
                                {"FP16", v1::F16},
                                {"BF16", v1::BF16},
                                {"INT32", v1::I32}};

// Those that the protocol has, and that no tensor here is of.
constexpr absl::string_view kOtherTypes[] = {
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64",
    "INT8", "INT16", "INT64",  "FP64",   "BYTES"};

// Whether the protocol has a type of that name.
bool IsDatatype(absl::string_view name) {
  return std::any_of(std::begin(kTypes), std::end(kTypes),
                     [name](const NamedType& t) { return t.name == name; }) ||
         std::find(std::begin(kOtherTypes), std::end(kOtherTypes), name) !=
             std::end(kOtherTypes);
}

constexpr v1::DType kStates[] = {v1::F32, v1::F16, v1::BF16};
constexpr v1::DType kIds[] = {v1::I32};
constexpr v1::DType kWeights[] = {v1::F32};

std::string NamesOf(absl::Span<const v1::DType> dtypes) {
  return absl::StrJoin(dtypes, ", ", [](std::string* out, v1::DType dtype) {
    absl::StrAppend(out, InferDatatype(dtype));
  });
}

// The one of `wanted` that is called `name`.
absl::StatusOr<v1::DType> ParseDatatype(absl::string_view field,
                                        absl::string_view name,
                                        absl::Span<const v1::DType> wanted) {
  for (const NamedType& type : kTypes) {
    if (type.name == name &&
        std::find(wanted.begin(), wanted.end(), type.dtype) != wanted.end()) {
      return type.dtype;
    }
  }
  return Refuse(field, ": want ", NamesOf(wanted), "; got ", Shown(name));
}

absl::StatusOr<int64_t> IntegerOf(absl::string_view name,
                                  const InferParameter& parameter) {
  if (parameter.has_int64_param()) return parameter.int64_param();
  if (parameter.has_uint64_param()) {
    return static_cast<int64_t>(std::min<uint64_t>(
        parameter.uint64_param(), std::numeric_limits<int64_t>::max()));
  }
  return Refuse("parameters.", name, ": want an int64_param");
}

// Extensions for data and answers elsewhere than in the message.
template <typename Tensor>
absl::Status CheckTensorParameters(absl::string_view field,
                                   const Tensor& tensor) {
  for (const char* name : {"shared_memory_region", "classification"}) {
    if (tensor.parameters().contains(name)) {
      return absl::UnimplementedError(absl::StrCat(
          field, " ", Shown(tensor.name()), ": ", name, " is not supported"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view InferName(AnswerPart part) {
  switch (part) {
    case AnswerPart::kOutput:
      return "output";
    case AnswerPart::kExpertIds:
      return "expert_ids";
    case AnswerPart::kRoutingWeights:
      return "routing_weights";
    default:
      return "router_logits";
  }
}

absl::string_view InferDatatype(v1::DType dtype) {
  for (const NamedType& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return "";
}

bool InferTarget::routed() const {
  const auto& layers = served->model->layers();
  return std::any_of(layers.begin(), layers.end(), [&](const auto& one) {
    return !one.ffn->dense() && layer.value_or(one.index) == one.index;
  });
}

absl::StatusOr<InferTarget> FindInferTarget(const ModelRegistry& registry,
                                            absl::string_view name,
                                            absl::string_view version) {
  if (!version.empty() && version != kInferVersion) {
    return absl::NotFoundError(absl::StrCat(
        "model_version: want \"1\" or none, got ", Shown(version)));
  }
  const auto whole = registry.Find(name);
  if (!absl::IsNotFound(whole.status())) {
    MOE_RETURN_IF_ERROR(whole.status());
    return InferTarget{.served = *whole, .layer = std::nullopt};
  }
  constexpr absl::string_view kInfix = ".layers.";
  const size_t at = name.rfind(kInfix);
  int32_t layer = 0;
  if (at == absl::string_view::npos ||
      !absl::SimpleAtoi(name.substr(at + kInfix.size()), &layer)) {
    return whole.status();
  }
  MOE_ASSIGN_OR_RETURN(ServedLayer found,
                       registry.FindLayer(name.substr(0, at), layer));
  return InferTarget{.served = std::move(found.served), .layer = layer};
}

absl::Status InferWireRequest::Prepare(const grpc::ByteBuffer& message,
                                       const ModelRegistry& registry,
                                       const ServiceLimits& limits) {
  MOE_RETURN_IF_ERROR(message_.Parse(message));
  request_id_ = message_.head().id();
  MOE_RETURN_IF_ERROR(CheckRequestId());
  MOE_ASSIGN_OR_RETURN(const Parameters parameters, ReadParameters());
  MOE_ASSIGN_OR_RETURN(ServedLayer served,
                       FindLayer(registry, parameters.layer));
  MOE_ASSIGN_OR_RETURN(const Inputs inputs, FindInputs());
  MOE_RETURN_IF_ERROR(CheckRaw());

  const auto read = [this](int i, absl::Span<const v1::DType> wanted,
                           v1::Tensor* head) -> absl::StatusOr<WireTensor> {
    if (i < 0) return WireTensor(*head);
    MOE_ASSIGN_OR_RETURN(const InferMessage::Data data,
                         ReadInput(i, wanted, head));
    return WireTensor(*head, data.bytes, data.size);
  };
  v1::Tensor states_head;
  v1::Tensor ids_head;
  v1::Tensor weights_head;
  const auto states = read(inputs.hidden_states, kStates, &states_head);
  MOE_RETURN_IF_ERROR(states.status());
  const auto ids = read(inputs.expert_ids, kIds, &ids_head);
  MOE_RETURN_IF_ERROR(ids.status());
  const auto weights = read(inputs.routing_weights, kWeights, &weights_head);
  MOE_RETURN_IF_ERROR(weights.status());
  MOE_RETURN_IF_ERROR(CheckTensors(
      served,
      {.hidden_states = *states,
       .expert_ids = inputs.expert_ids >= 0 ? &*ids : nullptr,
       .routing_weights = inputs.routing_weights >= 0 ? &*weights : nullptr},
      limits));
  MOE_ASSIGN_OR_RETURN(const auto parts,
                       RequestedParts(served.layer->ffn->dense()));
  return SetAnswer(std::move(served), parts,
                   parameters.output_dtype.value_or(input_dtype()), limits);
}

absl::StatusOr<InferWireRequest::Parameters>
InferWireRequest::ReadParameters() {
  Parameters result;
  for (const auto& [name, value] : message_.head().parameters()) {
    if (name == "layer") {
      MOE_ASSIGN_OR_RETURN(const int64_t layer, IntegerOf(name, value));
      // No model has a layer of those numbers.
      result.layer = static_cast<int32_t>(
          std::clamp<int64_t>(layer, std::numeric_limits<int32_t>::min(),
                              std::numeric_limits<int32_t>::max()));
    } else if (name == "output_datatype") {
      if (!value.has_string_param()) {
        return Refuse("parameters.output_datatype: want a string_param");
      }
      const auto parsed = ParseDatatype("parameters.output_datatype",
                                        value.string_param(), kStates);
      if (!parsed.ok()) {
        return RefuseDType("parameters.output_datatype", NamesOf(kStates),
                           Shown(value.string_param()),
                           IsDatatype(value.string_param()));
      }
      result.output_dtype = *parsed;
    } else if (name == "timeout") {
      MOE_ASSIGN_OR_RETURN(const int64_t micros, IntegerOf(name, value));
      constexpr int64_t kMax = int64_t{1} << 40;  // two weeks
      if (micros < 0) {
        return Refuse("parameters.timeout: want microseconds, got ", micros);
      }
      // As with other servers, 0 is none.
      if (micros > 0 && micros < kMax) {
        deadline = std::min(deadline, std::chrono::steady_clock::now() +
                                          std::chrono::microseconds(micros));
      }
    } else if (name == "triton_enable_empty_final_response") {
      mark_final_ = value.bool_param();
    }
  }
  return result;
}

absl::StatusOr<ServedLayer> InferWireRequest::FindLayer(
    const ModelRegistry& registry, std::optional<int32_t> layer) const {
  const ModelInferRequest& head = message_.head();
  MOE_ASSIGN_OR_RETURN(
      const InferTarget target,
      FindInferTarget(registry, head.model_name(), head.model_version()));
  if (!target.layer.has_value() && !layer.has_value()) {
    return Refuse(
        "parameters.layer: want the index of a layer as int64_param, "
        "or a model_name \"",
        target.served->name, ".layers.L\"; got neither");
  }
  if (target.layer.has_value() &&
      layer.value_or(*target.layer) != *target.layer) {
    return Refuse("parameters.layer: want none, or ", *target.layer,
                  " as in the model_name; got ", *layer);
  }
  return ModelRegistry::LayerOf(
      target.served, target.layer.has_value() ? *target.layer : *layer);
}

absl::StatusOr<InferWireRequest::Inputs> InferWireRequest::FindInputs() const {
  Inputs result;
  const auto& inputs = message_.head().inputs();
  for (int i = 0; i < inputs.size(); ++i) {
    const std::string& name = inputs[i].name();
    int* const place = name == "hidden_states"     ? &result.hidden_states
                       : name == "expert_ids"      ? &result.expert_ids
                       : name == "routing_weights" ? &result.routing_weights
                                                   : nullptr;
    if (place == nullptr) {
      return Refuse(
          "inputs: want hidden_states, and expert_ids with routing_weights or "
          "neither; got ",
          Shown(name));
    }
    if (*place >= 0)
      return Refuse("inputs: want ", name, " once, got it twice");
    *place = i;
    MOE_RETURN_IF_ERROR(CheckTensorParameters("inputs", inputs[i]));
  }
  if (result.hidden_states < 0) {
    return Refuse("inputs: want hidden_states, got none");
  }
  return result;
}

absl::Status InferWireRequest::CheckRaw() const {
  const auto& inputs = message_.head().inputs();
  const size_t raw = message_.num_raw();
  if (raw == 0) return absl::OkStatus();
  for (int i = 0; i < inputs.size(); ++i) {
    if (message_.ContentsOf(i).any()) {
      return Refuse(inputs[i].name(),
                    ".contents: want none beside raw_input_contents");
    }
  }
  const auto num_inputs = static_cast<size_t>(inputs.size());
  if (raw < num_inputs) {
    return Refuse("raw_input_contents: want an entry for each of ", num_inputs,
                  " inputs, got ", raw, ": none for ",
                  inputs[static_cast<int>(raw)].name());
  }
  if (raw > num_inputs) {
    return Refuse("raw_input_contents: want an entry for each of ", num_inputs,
                  " inputs, got ", raw, ": some after that of ",
                  inputs[inputs.size() - 1].name());
  }
  return absl::OkStatus();
}

absl::StatusOr<InferMessage::Data> InferWireRequest::ReadInput(
    int i, absl::Span<const v1::DType> wanted, v1::Tensor* head) const {
  const auto& input = message_.head().inputs(i);
  MOE_ASSIGN_OR_RETURN(const v1::DType dtype,
                       ParseDatatype(absl::StrCat(input.name(), ".datatype"),
                                     input.datatype(), wanted));
  head->set_dtype(dtype);
  *head->mutable_shape() = input.shape();
  return DataOf(i, input.name(), dtype);
}

absl::StatusOr<InferMessage::Data> InferWireRequest::DataOf(
    int i, absl::string_view name, v1::DType dtype) const {
  if (message_.num_raw() > 0) return message_.Raw(static_cast<size_t>(i));
  const InferMessage::Contents& contents = message_.ContentsOf(i);
  // No elements: right for no tokens, else a wrong number of bytes.
  if (!contents.any())
    return InferMessage::Data{.bytes = WireBytes(""), .size = 0};
  switch (dtype) {
    case v1::F32:
      if (contents.only(Elements::kFp32ContentsFieldNumber)) {
        return message_.FloatsOf(i);
      }
      return Refuse(name, ".contents: want fp32_contents alone, as for FP32");
    case v1::I32:
      if (contents.only(Elements::kIntContentsFieldNumber)) {
        return message_.IntsOf(i);
      }
      return Refuse(name, ".contents: want int_contents alone, as for INT32");
    default:
      return Refuse(name, ".contents: want raw_input_contents for ",
                    InferDatatype(dtype));
  }
}

absl::StatusOr<absl::InlinedVector<AnswerPart, 4>>
InferWireRequest::RequestedParts(bool dense) const {
  constexpr AnswerPart kAll[] = {AnswerPart::kOutput, AnswerPart::kExpertIds,
                                 AnswerPart::kRoutingWeights};
  const auto there_are = absl::MakeSpan(kAll, dense ? 1 : 3);
  const auto& asked = message_.head().outputs();
  if (asked.empty()) {
    return absl::InlinedVector<AnswerPart, 4>(there_are.begin(),
                                              there_are.end());
  }
  absl::InlinedVector<AnswerPart, 4> parts;
  for (const auto& output : asked) {
    const auto* const found = std::find_if(
        there_are.begin(), there_are.end(),
        [&](AnswerPart part) { return InferName(part) == output.name(); });
    if (found == there_are.end()) {
      return Refuse("outputs: want ",
                    absl::StrJoin(there_are, ", ",
                                  [](std::string* out, AnswerPart part) {
                                    absl::StrAppend(out, InferName(part));
                                  }),
                    "; got ", Shown(output.name()));
    }
    if (std::find(parts.begin(), parts.end(), *found) != parts.end()) {
      return Refuse("outputs: want ", output.name(), " once, got it twice");
    }
    MOE_RETURN_IF_ERROR(CheckTensorParameters("outputs", output));
    parts.push_back(*found);
  }
  return parts;
}

void InferWireRequest::LayOut(AnswerBytes& answer) const {
  ModelInferResponse head;
  head.set_model_name(message_.head().model_name());
  head.set_model_version(std::string(kInferVersion));
  head.set_id(request_id_);
  if (mark_final_) {
    (*head.mutable_parameters())["triton_final_response"].set_bool_param(true);
  }
  absl::InlinedVector<AnswerBytes::Rows, 4> rows;
  for (const AnswerPart part : answer_parts()) {
    const v1::DType dtype = DTypeOf(part);
    const int64_t columns = ColumnsOf(part);
    auto& output = *head.add_outputs();
    output.set_name(std::string(InferName(part)));
    output.set_datatype(std::string(InferDatatype(dtype)));
    output.add_shape(tokens);
    output.add_shape(columns);
    const int64_t row_bytes = columns * ElementBytes(dtype);
    rows.push_back(
        {.before = FieldHead(ModelInferResponse::kRawOutputContentsFieldNumber,
                             static_cast<size_t>(tokens * row_bytes)),
         .rows = tokens,
         .row_bytes = row_bytes});
  }
  rows.front().before.insert(0, head.SerializeAsString());
  answer.Reserve(rows, answer_field_);
}

grpc::ByteBuffer InferWireRequest::StreamError(
    const absl::Status& status, int64_t /*retry_after_ms*/) const {
  // There is no field for the code.
  inference::ModelStreamInferResponse response;
  response.set_error_message(
      absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                   ToGrpcStatus(status).error_message()));
  response.mutable_infer_response()->set_model_name(
      message_.head().model_name().substr(0, 128));
  response.mutable_infer_response()->set_id(request_id());
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace moe
