#include "server/moe_v1/moe_request.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "moe/v1/moe.pb.h"
#include "router/ffn_layer.h"
#include "server/engine/engine_request.h"
#include "server/engine/layer_call.h"
#include "server/rpc/request_rows.h"
#include "server/rpc/response_plan.h"
#include "server/wire/grpc_status.h"
#include "server/wire/small_message.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_fields.h"
#include "server/wire/wire_message.h"

namespace moe {
namespace {

double Seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

constexpr int kRequestIdField = v1::ForwardResponse::kRequestIdFieldNumber;
static_assert(kRequestIdField == v1::RouteResponse::kRequestIdFieldNumber);

int ForwardField(ResponsePart part) {
  switch (part) {
    case ResponsePart::kExpertIds:
      return v1::ForwardResponse::kExpertIdsFieldNumber;
    case ResponsePart::kRoutingWeights:
      return v1::ForwardResponse::kRoutingWeightsFieldNumber;
    default:
      return v1::ForwardResponse::kOutputFieldNumber;
  }
}

int RouteField(ResponsePart part) {
  switch (part) {
    case ResponsePart::kExpertIds:
      return v1::RouteResponse::kExpertIdsFieldNumber;
    case ResponsePart::kRoutingWeights:
      return v1::RouteResponse::kRoutingWeightsFieldNumber;
    default:
      return v1::RouteResponse::kRouterLogitsFieldNumber;
  }
}

// What only the engine can tell of a ForwardResponse, as fields that always
// have as many bytes: they are written over with each part of the rows.
std::string ForwardAnnotations(const EngineTiming& timing,
                               std::optional<int64_t> left_out) {
  using Timing = v1::ForwardTiming;
  std::string times;
  AppendDouble(Timing::kQueueSecondsFieldNumber, Seconds(timing.queued),
               &times);
  AppendDouble(Timing::kComputeSecondsFieldNumber, Seconds(timing.computed),
               &times);
  std::string fields =
      FieldHead(v1::ForwardResponse::kTimingFieldNumber, times.size()) + times;
  if (left_out.has_value()) {
    AppendFixed32(v1::ForwardResponse::kLeftOutExpertsFieldNumber,
                  static_cast<uint32_t>(*left_out), &fields);
  }
  return fields;
}

// How a response is laid out.
struct Layout {
  int (*field_of)(ResponsePart part);
  // The response is this field of another message; 0 = none.
  int inside_field = 0;
  // Whether it has annotations, and whether these count what was left out.
  bool annotated = false;
  bool counts_left_out = false;
};

class MoeCodec final : public RequestCodec {
 public:
  // data: what the rows are views of
  MoeCodec(TensorData data, const RequestRows& rows, ResponsePlan plan,
           std::string request_id, const Layout& layout,
           OutgoingMessage* response)
      : data_(std::move(data)),
        rows_(rows),
        plan_(std::move(plan)),
        request_id_(std::move(request_id)),
        layout_(layout),
        response_(*response) {}

  void Decode(int64_t first, Matrix hidden_states) const override {
    rows_.Decode(first, hidden_states);
  }
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override {
    rows_.DecodeRouting(first, ids, weights);
  }
  void LayOut() override {
    absl::InlinedVector<OutgoingMessage::TensorPlan, 4> plans;
    for (const ResponsePlan::Tensor& tensor : plan_.tensors()) {
      plans.push_back({.field = layout_.field_of(tensor.part),
                       .dtype = tensor.dtype,
                       .rows = plan_.tokens(),
                       .cols = tensor.columns});
    }
    std::string fields;
    if (!request_id_.empty()) {
      fields = FieldHead(kRequestIdField, request_id_.size()) + request_id_;
    }
    // Written over by each Encode.
    fields += Annotations(EngineTiming{});
    response_.Reserve(fields, plans, layout_.inside_field);
  }
  void Encode(int64_t first, const EngineResult& rows) override {
    left_out_ += rows.left_out;
    const std::string annotations = Annotations(rows.timing);
    std::copy(annotations.begin(), annotations.end(),
              response_.FieldsEnd() - annotations.size());
    plan_.Encode(first, rows, response_);
  }

 private:
  std::string Annotations(const EngineTiming& timing) const {
    if (!layout_.annotated) return "";
    return ForwardAnnotations(timing, layout_.counts_left_out
                                          ? std::optional<int64_t>(left_out_)
                                          : std::nullopt);
  }

  const TensorData data_;
  const RequestRows rows_;
  const ResponsePlan plan_;
  const std::string request_id_;
  const Layout layout_;
  OutgoingMessage& response_;
  int64_t left_out_ = 0;  // experts, so far
};

// A request whose tensors have been checked.
absl::StatusOr<ParsedRequest> Finish(LayerCall call, int64_t message_bytes,
                                     TensorData data, const RequestRows& rows,
                                     v1::DType output_dtype,
                                     const std::string& request_id,
                                     const Layout& layout,
                                     const ServiceLimits& limits) {
  ResponsePlan plan(call, output_dtype);
  MOE_RETURN_IF_ERROR(plan.CheckSize(limits));
  ParsedRequest parsed{.call = std::move(call),
                       .bytes = plan.bytes() + message_bytes,
                       .response = std::make_unique<OutgoingMessage>()};
  parsed.codec =
      std::make_unique<MoeCodec>(std::move(data), rows, std::move(plan),
                                 request_id, layout, parsed.response.get());
  return parsed;
}

absl::StatusOr<ParsedRequest> ParseForwardInside(
    int inside_field, const grpc::ByteBuffer& message,
    const ParseContext& context, RequestLabel* label) {
  using Message = v1::ForwardRequest;
  Message request;
  TensorData data;
  MOE_RETURN_IF_ERROR(data.Parse(message,
                                 {.first = Message::kHiddenStatesFieldNumber,
                                  .last = Message::kRoutingWeightsFieldNumber},
                                 &request));
  label->request_id = std::move(*request.mutable_request_id());
  MOE_RETURN_IF_ERROR(CheckRequestId(&label->request_id));
  MOE_ASSIGN_OR_RETURN(
      ServedLayer served,
      context.registry.FindLayer(request.model(), request.layer()));
  const WireTensor states =
      data.Tensor(Message::kHiddenStatesFieldNumber, request.hidden_states());
  const WireTensor ids =
      data.Tensor(Message::kExpertIdsFieldNumber, request.expert_ids());
  const WireTensor weights = data.Tensor(Message::kRoutingWeightsFieldNumber,
                                         request.routing_weights());
  MOE_ASSIGN_OR_RETURN(
      const RequestRows rows,
      RequestRows::Check(
          served,
          {.hidden_states = states,
           .expert_ids = request.has_expert_ids() ? &ids : nullptr,
           .routing_weights =
               request.has_routing_weights() ? &weights : nullptr},
          context.limits));
  MOE_ASSIGN_OR_RETURN(const v1::DType output_dtype,
                       OutputDType(request.output_dtype(), rows.dtype()));
  ResponseParts parts = {ResponsePart::kOutput};
  if (request.return_routing() && !served.layer->ffn->dense()) {
    parts.push_back(ResponsePart::kExpertIds);
    parts.push_back(ResponsePart::kRoutingWeights);
  }
  const Layout layout{.field_of = &ForwardField,
                      .inside_field = inside_field,
                      .annotated = true,
                      .counts_left_out = served.layer->ffn->may_leave_out()};
  return Finish({.layer = std::move(served),
                 .tokens = rows.tokens(),
                 .given_k = rows.given_k(),
                 .parts = std::move(parts)},
                static_cast<int64_t>(message.Length()), std::move(data), rows,
                output_dtype, label->request_id, layout, context.limits);
}

}  // namespace

absl::StatusOr<ParsedRequest> ParseForward(const grpc::ByteBuffer& message,
                                           const ParseContext& context,
                                           RequestLabel* label) {
  return ParseForwardInside(/*inside_field=*/0, message, context, label);
}

absl::StatusOr<ParsedRequest> ParseStreamedForward(
    const grpc::ByteBuffer& message, const ParseContext& context,
    RequestLabel* label) {
  return ParseForwardInside(v1::ForwardStreamResponse::kResponseFieldNumber,
                            message, context, label);
}

grpc::ByteBuffer ForwardStreamError(const RequestLabel& label,
                                    const absl::Status& status,
                                    int64_t retry_after_ms) {
  const grpc::Status shown = ToGrpcStatus(status);
  v1::ForwardStreamResponse response;
  response.mutable_response()->set_request_id(label.request_id);
  response.set_code(shown.error_code());
  response.set_message(shown.error_message());
  response.set_retry_after_ms(retry_after_ms);
  return Serialize(response);
}

absl::StatusOr<ParsedRequest> ParseRoute(const grpc::ByteBuffer& message,
                                         const ParseContext& context,
                                         RequestLabel* label) {
  using Message = v1::RouteRequest;
  Message request;
  TensorData data;
  MOE_RETURN_IF_ERROR(data.Parse(message,
                                 {.first = Message::kHiddenStatesFieldNumber,
                                  .last = Message::kHiddenStatesFieldNumber},
                                 &request));
  label->request_id = std::move(*request.mutable_request_id());
  MOE_RETURN_IF_ERROR(CheckRequestId(&label->request_id));
  MOE_ASSIGN_OR_RETURN(
      ServedLayer served,
      context.registry.FindLayer(request.model(), request.layer()));
  const WireTensor states =
      data.Tensor(Message::kHiddenStatesFieldNumber, request.hidden_states());
  MOE_ASSIGN_OR_RETURN(
      const RequestRows rows,
      RequestRows::Check(served, {.hidden_states = states}, context.limits));
  if (served.layer->ffn->dense()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer: want a routed layer, ", request.layer(), " is dense"));
  }
  ResponseParts parts = {ResponsePart::kExpertIds,
                         ResponsePart::kRoutingWeights};
  if (request.return_router_logits()) {
    parts.push_back(ResponsePart::kRouterLogits);
  }
  return Finish({.layer = std::move(served),
                 .tokens = rows.tokens(),
                 .given_k = 0,
                 .parts = std::move(parts)},
                static_cast<int64_t>(message.Length()), std::move(data), rows,
                /*output_dtype=*/v1::F32, label->request_id,
                {.field_of = &RouteField}, context.limits);
}

}  // namespace moe
