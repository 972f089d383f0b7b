#include "server/rpc/wire_request.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/wire/grpc_status.h"

namespace moe {
namespace {

using Wire = google::protobuf::internal::WireFormatLite;

constexpr size_t kMaxRequestIdBytes = 128;
// Of an answer, besides the bytes of its tensors.
constexpr int64_t kMaxEnvelopeBytes = 1024;

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

absl::Status NoSuchMessage(absl::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat("request: want a moe.v1.", name, " message"));
}

}  // namespace

absl::Status WireRequest::CheckRequestId() {
  if (request_id_.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  const size_t size = request_id_.size();
  request_id_.clear();  // not returned
  return absl::InvalidArgumentError(absl::StrCat(
      "request_id: want at most ", kMaxRequestIdBytes, " bytes, got ", size));
}

absl::Status WireRequest::CheckTensors(const ServedLayer& served,
                                       const Tensors& tensors,
                                       const ServiceLimits& limits) {
  const FfnLayer& ffn = *served.layer->ffn;
  if (!ffn.dense() && !ffn.has_router()) {
    return absl::FailedPreconditionError(
        "model: this server is a shard, which holds some experts and no "
        "router; call the front");
  }
  MOE_ASSIGN_OR_RETURN(
      hidden_states_,
      CheckHiddenStates(tensors.hidden_states, "hidden_states", ffn.d_model(),
                        limits.max_request_tokens));
  tokens = hidden_states_.rows;
  const bool ids = tensors.expert_ids != nullptr;
  if (ids != (tensors.routing_weights != nullptr)) {
    return absl::InvalidArgumentError(
        ids ? "routing_weights: want them with expert_ids, got none"
            : "expert_ids: want them with routing_weights, got none");
  }
  if (!ids) return absl::OkStatus();
  if (ffn.dense()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expert_ids: want none, layer ", served.layer->index, " is dense"));
  }
  MOE_ASSIGN_OR_RETURN(
      routing_, CheckRouting(*tensors.expert_ids, *tensors.routing_weights,
                             tokens, ffn.num_experts()));
  return absl::OkStatus();
}

absl::Status WireRequest::SetAnswer(ServedLayer served,
                                    absl::Span<const AnswerPart> parts,
                                    v1::DType output_dtype,
                                    const ServiceLimits& limits) {
  parts_.assign(parts.begin(), parts.end());
  output_dtype_ = output_dtype;
  const bool route_only =
      !routing_.has_value() &&
      std::find(parts.begin(), parts.end(), AnswerPart::kOutput) == parts.end();
  SetLayer(std::move(served), routing_.has_value() ? routing_->ids.cols : 0,
           route_only);
  int64_t row_bytes = 0;
  for (const AnswerPart part : parts_) {
    row_bytes += ColumnsOf(part) * ElementBytes(DTypeOf(part));
  }
  const int64_t answer_bytes = tokens * row_bytes;
  if (answer_bytes + kMaxEnvelopeBytes > limits.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hidden_states.shape: want an answer of at most ",
        limits.max_message_bytes, " bytes, ", tokens, " tokens make ",
        answer_bytes, "; send fewer, or ask for another output_dtype"));
  }
  bytes = answer_bytes + hidden_states_.bytes();
  if (routing_.has_value()) {
    bytes += routing_->ids.bytes() + routing_->weights.bytes();
  }
  return absl::OkStatus();
}

v1::DType WireRequest::DTypeOf(AnswerPart part) const {
  switch (part) {
    case AnswerPart::kOutput:
      return output_dtype_;
    case AnswerPart::kExpertIds:
      return v1::I32;
    default:
      return v1::F32;
  }
}

int64_t WireRequest::ColumnsOf(AnswerPart part) const {
  switch (part) {
    case AnswerPart::kOutput:
      return ffn().d_model();
    case AnswerPart::kRouterLogits:
      return ffn().num_experts();
    default:
      return key.given_k > 0 ? key.given_k : ffn().top_k();
  }
}

void WireRequest::Decode(int64_t first, Matrix hidden_states) const {
  moe::Decode(hidden_states_.Rows(first, hidden_states.rows()), hidden_states);
}

void WireRequest::DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                                Matrix weights) const {
  DecodeIds(routing_->ids.Rows(first, ids.rows()), ids);
  moe::Decode(routing_->weights.Rows(first, weights.rows()), weights);
}

void WireRequest::Encode(int64_t first, const EngineResult& rows) {
  if (first == 0) LayOut(answer_);
  left_out_ += rows.left_out;
  Annotate(answer_);
  for (size_t i = 0; i < parts_.size(); ++i) {
    char* to = answer_.Row(i, first);
    switch (parts_[i]) {
      case AnswerPart::kOutput:
        EncodeRows(rows.output, output_dtype_, to);
        break;
      case AnswerPart::kExpertIds:
        EncodeRows(rows.routing.ids, to);
        break;
      case AnswerPart::kRoutingWeights:
        EncodeRows(rows.routing.weights, v1::F32, to);
        break;
      case AnswerPart::kRouterLogits:
        EncodeRows(rows.router_logits, v1::F32, to);
        break;
    }
  }
}

void MoeWireRequest::LayOut(AnswerBytes& answer) const {
  absl::InlinedVector<AnswerBytes::TensorPlan, 4> plans;
  for (const AnswerPart part : answer_parts()) {
    plans.push_back({.field = FieldOf(part),
                     .dtype = DTypeOf(part),
                     .rows = tokens,
                     .cols = ColumnsOf(part)});
  }
  constexpr int kRequestIdField = v1::ForwardResponse::kRequestIdFieldNumber;
  static_assert(kRequestIdField == v1::RouteResponse::kRequestIdFieldNumber);
  std::string fields;
  if (!request_id_.empty()) {
    fields = FieldHead(kRequestIdField, request_id_.size()) + request_id_;
  }
  answer.Reserve(fields + Annotations(), plans, answer_field_);
}

void MoeWireRequest::Annotate(AnswerBytes& answer) const {
  const std::string annotations = Annotations();
  std::copy(annotations.begin(), annotations.end(),
            answer.FieldsEnd() - annotations.size());
}

absl::Status ForwardWireRequest::Prepare(const grpc::ByteBuffer& message,
                                         const ModelRegistry& registry,
                                         const ServiceLimits& limits) {
  using Message = v1::ForwardRequest;
  Message request;
  if (!data_.Parse(message, Message::kHiddenStatesFieldNumber,
                   Message::kRoutingWeightsFieldNumber, &request)) {
    return NoSuchMessage("ForwardRequest");
  }
  request_id_ = std::move(*request.mutable_request_id());
  MOE_RETURN_IF_ERROR(CheckRequestId());
  MOE_ASSIGN_OR_RETURN(ServedLayer served,
                       registry.FindLayer(request.model(), request.layer()));
  const WireTensor states =
      data_.Tensor(Message::kHiddenStatesFieldNumber, request.hidden_states());
  const WireTensor ids =
      data_.Tensor(Message::kExpertIdsFieldNumber, request.expert_ids());
  const WireTensor weights = data_.Tensor(Message::kRoutingWeightsFieldNumber,
                                          request.routing_weights());
  MOE_RETURN_IF_ERROR(CheckTensors(
      served,
      {.hidden_states = states,
       .expert_ids = request.has_expert_ids() ? &ids : nullptr,
       .routing_weights = request.has_routing_weights() ? &weights : nullptr},
      limits));
  MOE_ASSIGN_OR_RETURN(const v1::DType output_dtype,
                       OutputDType(request.output_dtype(), input_dtype()));
  constexpr AnswerPart kParts[] = {AnswerPart::kOutput, AnswerPart::kExpertIds,
                                   AnswerPart::kRoutingWeights};
  const bool routing = request.return_routing() && !served.layer->ffn->dense();
  return SetAnswer(std::move(served), absl::MakeSpan(kParts, routing ? 3 : 1),
                   output_dtype, limits);
}

int ForwardWireRequest::FieldOf(AnswerPart part) const {
  switch (part) {
    case AnswerPart::kExpertIds:
      return v1::ForwardResponse::kExpertIdsFieldNumber;
    case AnswerPart::kRoutingWeights:
      return v1::ForwardResponse::kRoutingWeightsFieldNumber;
    default:
      return v1::ForwardResponse::kOutputFieldNumber;
  }
}

std::string ForwardWireRequest::Annotations() const {
  using Answer = v1::ForwardResponse;
  using Timing = v1::ForwardTiming;
  constexpr size_t kTagBytes = 1;
  constexpr size_t kTimingBytes = 2 * (kTagBytes + sizeof(double));
  constexpr size_t kLeftOutBytes = kTagBytes + sizeof(uint32_t);
  std::array<uint8_t, kTimingBytes + kLeftOutBytes> values{};
  // By hand, since protobuf leaves out what is 0.
  uint8_t* end =
      Wire::WriteDoubleToArray(Timing::kQueueSecondsFieldNumber,
                               Seconds(timing().queued), values.data());
  end = Wire::WriteDoubleToArray(Timing::kComputeSecondsFieldNumber,
                                 Seconds(timing().computed), end);
  if (ffn().may_leave_out()) {
    end = Wire::WriteFixed32ToArray(Answer::kLeftOutExpertsFieldNumber,
                                    static_cast<uint32_t>(left_out()), end);
  }
  return FieldHead(Answer::kTimingFieldNumber, kTimingBytes) +
         std::string(values.data(), end);
}

grpc::ByteBuffer ForwardWireRequest::StreamError(const absl::Status& status,
                                                 int64_t retry_after_ms) const {
  const grpc::Status shown = ToGrpcStatus(status);
  v1::ForwardStreamResponse response;
  response.mutable_response()->set_request_id(request_id());
  response.set_code(shown.error_code());
  response.set_message(shown.error_message());
  response.set_retry_after_ms(retry_after_ms);
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status RouteWireRequest::Prepare(const grpc::ByteBuffer& message,
                                       const ModelRegistry& registry,
                                       const ServiceLimits& limits) {
  using Message = v1::RouteRequest;
  Message request;
  if (!data_.Parse(message, Message::kHiddenStatesFieldNumber,
                   Message::kHiddenStatesFieldNumber, &request)) {
    return NoSuchMessage("RouteRequest");
  }
  request_id_ = std::move(*request.mutable_request_id());
  MOE_RETURN_IF_ERROR(CheckRequestId());
  MOE_ASSIGN_OR_RETURN(ServedLayer served,
                       registry.FindLayer(request.model(), request.layer()));
  const WireTensor states =
      data_.Tensor(Message::kHiddenStatesFieldNumber, request.hidden_states());
  MOE_RETURN_IF_ERROR(CheckTensors(served, {.hidden_states = states}, limits));
  if (served.layer->ffn->dense()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer: want a routed layer, ", request.layer(), " is dense"));
  }
  constexpr AnswerPart kParts[] = {AnswerPart::kExpertIds,
                                   AnswerPart::kRoutingWeights,
                                   AnswerPart::kRouterLogits};
  return SetAnswer(
      std::move(served),
      absl::MakeSpan(kParts, request.return_router_logits() ? 3 : 2),
      /*output_dtype=*/v1::F32, limits);
}

int RouteWireRequest::FieldOf(AnswerPart part) const {
  switch (part) {
    case AnswerPart::kExpertIds:
      return v1::RouteResponse::kExpertIdsFieldNumber;
    case AnswerPart::kRoutingWeights:
      return v1::RouteResponse::kRoutingWeightsFieldNumber;
    default:
      return v1::RouteResponse::kRouterLogitsFieldNumber;
  }
}

}  // namespace moe
