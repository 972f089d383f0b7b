#include "server/open_inference/infer_request.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "experts/base/status_macros.h"
#include "inference/inference.pb.h"
#include "router/ffn_layer.h"
#include "server/engine/engine_request.h"
#include "server/rpc/request_rows.h"
#include "server/rpc/response_plan.h"
#include "server/wire/grpc_status.h"
#include "server/wire/infer_message.h"
#include "server/wire/small_message.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_fields.h"
#include "server/wire/wire_message.h"

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

// The most of a model's name that comes back with an error.
constexpr size_t kMaxLabelBytes = 128;

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

// Extensions for data and responses elsewhere than in the message.
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

absl::string_view InferName(ResponsePart part) {
  switch (part) {
    case ResponsePart::kOutput:
      return "output";
    case ResponsePart::kExpertIds:
      return "expert_ids";
    case ResponsePart::kRoutingWeights:
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

namespace {

// What the parameters of a request say.
struct Parameters {
  std::optional<int32_t> layer;
  std::optional<v1::DType> output_dtype;
  SteadyTime deadline = SteadyTime::max();
  bool mark_final = false;  // the caller wants each response marked as the last
};

absl::StatusOr<Parameters> ReadParameters(const ModelInferRequest& head,
                                          SteadyTime now) {
  Parameters result;
  for (const auto& [name, value] : head.parameters()) {
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
        result.deadline = now + std::chrono::microseconds(micros);
      }
    } else if (name == "triton_enable_empty_final_response") {
      result.mark_final = value.bool_param();
    }
  }
  return result;
}

absl::StatusOr<ServedLayer> FindLayer(const ModelInferRequest& head,
                                      const ModelRegistry& registry,
                                      std::optional<int32_t> layer) {
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

// The index of each input by its name, -1 if there is none.
struct Inputs {
  int hidden_states = -1;
  int expert_ids = -1;
  int routing_weights = -1;
};

absl::StatusOr<Inputs> FindInputs(const ModelInferRequest& head) {
  Inputs result;
  const auto& inputs = head.inputs();
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

// Checks that the data of all inputs are there, in one way.
absl::Status CheckRaw(const InferMessage& message) {
  const auto& inputs = message.head().inputs();
  const size_t raw = message.num_raw();
  if (raw == 0) return absl::OkStatus();
  for (int i = 0; i < inputs.size(); ++i) {
    if (message.ContentsOf(i).any()) {
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

// The data of input i, whose name is `name`.
// max_ints: no tensor of integers has more; of one that does the size is given
// and no data
absl::StatusOr<InferMessage::Data> DataOf(InferMessage& message, int i,
                                          absl::string_view name,
                                          v1::DType dtype, int64_t max_ints) {
  if (message.num_raw() > 0) return message.Raw(static_cast<size_t>(i));
  const InferMessage::Contents& contents = message.ContentsOf(i);
  // No elements: right for no tokens, else a wrong number of bytes.
  if (!contents.any())
    return InferMessage::Data{.bytes = WireBytes(""), .size = 0};
  switch (dtype) {
    case v1::F32:
      if (contents.only(Elements::kFp32ContentsFieldNumber)) {
        return message.FloatsOf(i);
      }
      return Refuse(name, ".contents: want fp32_contents alone, as for FP32");
    case v1::I32:
      if (contents.only(Elements::kIntContentsFieldNumber)) {
        const size_t count = message.NumInts(i);
        return count <= static_cast<size_t>(max_ints)
                   ? message.IntsOf(i)
                   : InferMessage::Data{.bytes = WireBytes(""),
                                        .size = count * sizeof(int32_t)};
      }
      return Refuse(name, ".contents: want int_contents alone, as for INT32");
    default:
      return Refuse(name, ".contents: want raw_input_contents for ",
                    InferDatatype(dtype));
  }
}

// Sets the tensor's element type and shape to those of input i, which must be
// one of `wanted`; returns its data.
absl::StatusOr<InferMessage::Data> ReadInput(InferMessage& message, int i,
                                             absl::Span<const v1::DType> wanted,
                                             int64_t max_ints,
                                             v1::Tensor* head) {
  const auto& input = message.head().inputs(i);
  MOE_ASSIGN_OR_RETURN(const v1::DType dtype,
                       ParseDatatype(absl::StrCat(input.name(), ".datatype"),
                                     input.datatype(), wanted));
  head->set_dtype(dtype);
  *head->mutable_shape() = input.shape();
  return DataOf(message, i, input.name(), dtype, max_ints);
}

// Finds the tensors of a request and checks them against a layer.
absl::StatusOr<RequestRows> ReadRows(InferMessage& message,
                                     const ServedLayer& served,
                                     const ServiceLimits& limits) {
  const int64_t max_ints =
      limits.max_request_tokens * served.layer->ffn->num_experts();
  MOE_ASSIGN_OR_RETURN(const Inputs inputs, FindInputs(message.head()));
  MOE_RETURN_IF_ERROR(CheckRaw(message));
  const auto read = [&](int i, absl::Span<const v1::DType> wanted,
                        v1::Tensor* head) -> absl::StatusOr<WireTensor> {
    if (i < 0) return WireTensor(*head);
    MOE_ASSIGN_OR_RETURN(const InferMessage::Data data,
                         ReadInput(message, i, wanted, max_ints, head));
    return WireTensor(*head, data.bytes, data.size);
  };
  v1::Tensor states_head;
  v1::Tensor ids_head;
  v1::Tensor weights_head;
  MOE_ASSIGN_OR_RETURN(const WireTensor states,
                       read(inputs.hidden_states, kStates, &states_head));
  MOE_ASSIGN_OR_RETURN(const WireTensor ids,
                       read(inputs.expert_ids, kIds, &ids_head));
  MOE_ASSIGN_OR_RETURN(const WireTensor weights,
                       read(inputs.routing_weights, kWeights, &weights_head));
  return RequestRows::Check(
      served,
      {.hidden_states = states,
       .expert_ids = inputs.expert_ids >= 0 ? &ids : nullptr,
       .routing_weights = inputs.routing_weights >= 0 ? &weights : nullptr},
      limits);
}

absl::StatusOr<ResponseParts> RequestedParts(const ModelInferRequest& head,
                                             bool dense) {
  constexpr ResponsePart kAll[] = {ResponsePart::kOutput,
                                   ResponsePart::kExpertIds,
                                   ResponsePart::kRoutingWeights};
  const auto there_are = absl::MakeSpan(kAll, dense ? 1 : 3);
  const auto& asked = head.outputs();
  if (asked.empty()) {
    return ResponseParts(there_are.begin(), there_are.end());
  }
  ResponseParts parts;
  for (const auto& output : asked) {
    const auto* const found = std::find_if(
        there_are.begin(), there_are.end(),
        [&](ResponsePart part) { return InferName(part) == output.name(); });
    if (found == there_are.end()) {
      return Refuse("outputs: want ",
                    absl::StrJoin(there_are, ", ",
                                  [](std::string* out, ResponsePart part) {
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

class InferCodec final : public RequestCodec {
 public:
  // message:      what the rows are views of
  // inside_field: the response is this field of another message; 0 = none
  InferCodec(InferMessage message, const RequestRows& rows, ResponsePlan plan,
             bool mark_final, int inside_field, OutgoingMessage* response)
      : model_name_(message.head().model_name()),
        id_(message.head().id()),
        message_(std::move(message)),
        rows_(rows),
        plan_(std::move(plan)),
        mark_final_(mark_final),
        inside_field_(inside_field),
        response_(*response) {
    message_.DropHead();
  }

  void Decode(int64_t first, Matrix hidden_states) const override {
    rows_.Decode(first, hidden_states);
  }
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override {
    rows_.DecodeRouting(first, ids, weights);
  }
  void LayOut() override;
  void Encode(int64_t first, const EngineResult& rows) override {
    plan_.Encode(first, rows, response_);
  }

 private:
  const std::string model_name_;
  const std::string id_;
  InferMessage message_;
  const RequestRows rows_;
  const ResponsePlan plan_;
  const bool mark_final_;
  const int inside_field_;
  OutgoingMessage& response_;
};

void InferCodec::LayOut() {
  ModelInferResponse head;
  head.set_model_name(model_name_);
  head.set_model_version(std::string(kInferVersion));
  head.set_id(id_);
  if (mark_final_) {
    (*head.mutable_parameters())["triton_final_response"].set_bool_param(true);
  }
  absl::InlinedVector<OutgoingMessage::Rows, 4> rows;
  for (const ResponsePlan::Tensor& tensor : plan_.tensors()) {
    auto& output = *head.add_outputs();
    output.set_name(std::string(InferName(tensor.part)));
    output.set_datatype(std::string(InferDatatype(tensor.dtype)));
    output.add_shape(plan_.tokens());
    output.add_shape(tensor.columns);
    const int64_t row_bytes = tensor.row_bytes();
    rows.push_back(
        {.before = FieldHead(ModelInferResponse::kRawOutputContentsFieldNumber,
                             static_cast<size_t>(plan_.tokens() * row_bytes)),
         .rows = plan_.tokens(),
         .row_bytes = row_bytes});
  }
  rows.front().before.insert(0, head.SerializeAsString());
  response_.Reserve(rows, inside_field_);
}

absl::StatusOr<ParsedRequest> ParseInferInside(int inside_field,
                                               const grpc::ByteBuffer& bytes,
                                               const ParseContext& context,
                                               RequestLabel* label) {
  InferMessage message;
  const absl::Status parsed_message = message.Parse(bytes);
  const ModelInferRequest& head = message.head();
  label->model_name = head.model_name().substr(0, kMaxLabelBytes);
  MOE_RETURN_IF_ERROR(parsed_message);
  label->request_id = head.id();
  MOE_RETURN_IF_ERROR(CheckRequestId(&label->request_id));
  MOE_ASSIGN_OR_RETURN(const Parameters parameters,
                       ReadParameters(head, context.now));
  MOE_ASSIGN_OR_RETURN(ServedLayer served,
                       FindLayer(head, context.registry, parameters.layer));
  MOE_ASSIGN_OR_RETURN(const RequestRows rows,
                       ReadRows(message, served, context.limits));
  MOE_ASSIGN_OR_RETURN(ResponseParts parts,
                       RequestedParts(head, served.layer->ffn->dense()));
  ParsedRequest parsed{.call = {.layer = std::move(served),
                                .tokens = rows.tokens(),
                                .given_k = rows.given_k(),
                                .parts = std::move(parts)},
                       .deadline = parameters.deadline,
                       .response = std::make_unique<OutgoingMessage>()};
  ResponsePlan plan(parsed.call,
                    parameters.output_dtype.value_or(rows.dtype()));
  MOE_RETURN_IF_ERROR(plan.CheckSize(context.limits));
  parsed.bytes = plan.bytes() + static_cast<int64_t>(bytes.Length()) +
                 message.copied_bytes();
  parsed.codec = std::make_unique<InferCodec>(
      std::move(message), rows, std::move(plan), parameters.mark_final,
      inside_field, parsed.response.get());
  return parsed;
}

}  // namespace

absl::StatusOr<ParsedRequest> ParseInfer(const grpc::ByteBuffer& message,
                                         const ParseContext& context,
                                         RequestLabel* label) {
  return ParseInferInside(/*inside_field=*/0, message, context, label);
}

absl::StatusOr<ParsedRequest> ParseStreamedInfer(
    const grpc::ByteBuffer& message, const ParseContext& context,
    RequestLabel* label) {
  return ParseInferInside(
      inference::ModelStreamInferResponse::kInferResponseFieldNumber, message,
      context, label);
}

grpc::ByteBuffer InferStreamError(const RequestLabel& label,
                                  const absl::Status& status,
                                  int64_t /*retry_after_ms*/) {
  // There is no field for the code.
  inference::ModelStreamInferResponse response;
  response.set_error_message(
      absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                   ToGrpcStatus(status).error_message()));
  response.mutable_infer_response()->set_model_name(label.model_name);
  response.mutable_infer_response()->set_id(label.request_id);
  return Serialize(response);
}

}  // namespace moe
