#include "server/wire_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
// Of an answer, besides the bytes of its tensors.
constexpr int64_t kMaxEnvelopeBytes = 512;

// The routing of a layer that chooses itself, or that was given `given_k`.
int64_t RoutingColumns(const EngineRequest& request) {
  return request.key.given_k > 0 ? request.key.given_k : request.ffn().top_k();
}

absl::Status NoSuchMessage(absl::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat("request: want a moe.v1.", name, " message"));
}

// Where the tensors of an answer are, in the order of their plan.
constexpr size_t kOutput = 0;  // of a ForwardResponse
constexpr size_t kForwardIds = 1, kForwardWeights = 2;
constexpr size_t kRouteIds = 0, kRouteWeights = 1;  // of a RouteResponse
constexpr size_t kLogits = 2;

}  // namespace

absl::Status WireRequest::CheckInput(const ModelRegistry& registry,
                                     const ServiceLimits& limits,
                                     const std::string& model,
                                     int32_t layer_index,
                                     const WireTensor& hidden_states,
                                     ServedLayer* layer) {
  if (request_id_.size() > kMaxRequestIdBytes) {
    const size_t size = request_id_.size();
    request_id_.clear();  // not returned
    return absl::InvalidArgumentError(absl::StrCat(
        "request_id: want at most ", kMaxRequestIdBytes, " bytes, got ", size));
  }
  MOE_ASSIGN_OR_RETURN(*layer, registry.FindLayer(model, layer_index));
  MOE_ASSIGN_OR_RETURN(hidden_states_,
                       CheckHiddenStates(hidden_states, "hidden_states",
                                         layer->layer->ffn->d_model(),
                                         limits.max_request_tokens));
  tokens = hidden_states_.rows;
  return absl::OkStatus();
}

absl::Status WireRequest::CheckAnswer(const ServiceLimits& limits,
                                      int64_t answer_bytes) {
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

void WireRequest::Decode(int64_t first, Matrix hidden_states) const {
  moe::Decode(hidden_states_.Rows(first, hidden_states.rows()), hidden_states);
}

void WireRequest::DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                                Matrix weights) const {
  DecodeIds(routing_->ids.Rows(first, ids.rows()), ids);
  moe::Decode(routing_->weights.Rows(first, weights.rows()), weights);
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
  return_routing_ = request.return_routing();
  ServedLayer served;
  MOE_RETURN_IF_ERROR(CheckInput(
      registry, limits, request.model(), request.layer(),
      data_.Tensor(Message::kHiddenStatesFieldNumber, request.hidden_states()),
      &served));
  MOE_ASSIGN_OR_RETURN(output_dtype_, OutputDType(request.output_dtype()));
  if (request.has_expert_ids() != request.has_routing_weights()) {
    return absl::InvalidArgumentError(
        request.has_expert_ids()
            ? "routing_weights: want them with expert_ids, got none"
            : "expert_ids: want them with routing_weights, got none");
  }
  const FfnLayer& ffn = *served.layer->ffn;
  int64_t given_k = 0;
  if (request.has_expert_ids()) {
    if (ffn.dense()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expert_ids: want none, layer ", request.layer(), " is dense"));
    }
    MOE_ASSIGN_OR_RETURN(
        routing_, CheckRouting(data_.Tensor(Message::kExpertIdsFieldNumber,
                                            request.expert_ids()),
                               data_.Tensor(Message::kRoutingWeightsFieldNumber,
                                            request.routing_weights()),
                               tokens, ffn.num_experts()));
    given_k = routing_->ids.cols;
  }
  return_routing_ &= !ffn.dense();
  SetLayer(std::move(served), given_k, /*route_only=*/false);
  int64_t answer_bytes = tokens * ffn.d_model() * ElementBytes(output_dtype_);
  if (return_routing_) {
    answer_bytes += tokens * RoutingColumns(*this) *
                    (ElementBytes(v1::I32) + ElementBytes(v1::F32));
  }
  return CheckAnswer(limits, answer_bytes);
}

absl::StatusOr<v1::DType> ForwardWireRequest::OutputDType(
    v1::DType asked) const {
  switch (asked) {
    case v1::DTYPE_UNSPECIFIED:
      return hidden_states_.dtype;
    case v1::F32:
    case v1::BF16:
    case v1::F16:
      return asked;
    case v1::I32:
      return absl::UnimplementedError(
          "output_dtype: want F32, BF16 or F16, got I32");
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("output_dtype: want F32, BF16 or F16, got ",
                       static_cast<int>(asked)));
  }
}

void ForwardWireRequest::Encode(int64_t first, const EngineResult& rows) {
  using Answer = v1::ForwardResponse;
  if (first == 0) {
    const int64_t k = RoutingColumns(*this);
    const AnswerBytes::TensorPlan plans[] = {
        {Answer::kOutputFieldNumber, output_dtype_, tokens, ffn().d_model()},
        {Answer::kExpertIdsFieldNumber, v1::I32, tokens, k},
        {Answer::kRoutingWeightsFieldNumber, v1::F32, tokens, k}};
    ReserveAnswer(absl::MakeSpan(plans, return_routing_ ? 3 : 1));
  }
  EncodeRows(rows.output, output_dtype_, answer_.Row(kOutput, first));
  if (!return_routing_) return;
  EncodeRows(rows.routing.ids, answer_.Row(kForwardIds, first));
  EncodeRows(rows.routing.weights, v1::F32,
             answer_.Row(kForwardWeights, first));
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
  return_router_logits_ = request.return_router_logits();
  ServedLayer served;
  MOE_RETURN_IF_ERROR(CheckInput(
      registry, limits, request.model(), request.layer(),
      data_.Tensor(Message::kHiddenStatesFieldNumber, request.hidden_states()),
      &served));
  const FfnLayer& ffn = *served.layer->ffn;
  if (ffn.dense()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer: want a routed layer, ", request.layer(), " is dense"));
  }
  SetLayer(std::move(served), /*given_k=*/0, /*route_only=*/true);
  int64_t row_bytes =
      ffn.top_k() * (ElementBytes(v1::I32) + ElementBytes(v1::F32));
  if (return_router_logits_) {
    row_bytes += ffn.num_experts() * ElementBytes(v1::F32);
  }
  return CheckAnswer(limits, tokens * row_bytes);
}

void RouteWireRequest::Encode(int64_t first, const EngineResult& rows) {
  using Answer = v1::RouteResponse;
  if (first == 0) {
    const int64_t k = ffn().top_k();
    const AnswerBytes::TensorPlan plans[] = {
        {Answer::kExpertIdsFieldNumber, v1::I32, tokens, k},
        {Answer::kRoutingWeightsFieldNumber, v1::F32, tokens, k},
        {Answer::kRouterLogitsFieldNumber, v1::F32, tokens,
         ffn().num_experts()}};
    ReserveAnswer(absl::MakeSpan(plans, return_router_logits_ ? 3 : 2));
  }
  EncodeRows(rows.routing.ids, answer_.Row(kRouteIds, first));
  EncodeRows(rows.routing.weights, v1::F32, answer_.Row(kRouteWeights, first));
  if (!return_router_logits_) return;
  EncodeRows(rows.router_logits, v1::F32, answer_.Row(kLogits, first));
}

}  // namespace moe
