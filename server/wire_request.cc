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

// Reserves the tensors of a routing when its first rows come, and adds rows.
template <typename Response>
void EncodeRouting(int64_t tokens, int64_t first, const Routing& rows,
                   Response& response) {
  v1::Tensor& ids = *response.mutable_expert_ids();
  v1::Tensor& weights = *response.mutable_routing_weights();
  if (first == 0) {
    Reserve(v1::I32, tokens, rows.ids.cols(), ids);
    Reserve(v1::F32, tokens, rows.ids.cols(), weights);
  }
  EncodeRows(rows.ids, first, ids);
  EncodeRows(rows.weights, first, weights);
}

}  // namespace

absl::Status WireRequest::CheckInput(
    const ModelRegistry& registry, const ServiceLimits& limits,
    absl::string_view request_id, const std::string& model, int32_t layer_index,
    const v1::Tensor& hidden_states, ServedLayer* layer) {
  if (request_id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: want at most ", kMaxRequestIdBytes,
                     " bytes, got ", request_id.size()));
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

absl::Status ForwardWireRequest::Prepare(const ModelRegistry& registry,
                                         const ServiceLimits& limits) {
  ServedLayer served;
  MOE_RETURN_IF_ERROR(CheckInput(registry, limits, request_.request_id(),
                                 request_.model(), request_.layer(),
                                 request_.hidden_states(), &served));
  MOE_ASSIGN_OR_RETURN(output_dtype_, OutputDType());
  if (request_.has_expert_ids() != request_.has_routing_weights()) {
    return absl::InvalidArgumentError(
        request_.has_expert_ids()
            ? "routing_weights: want them with expert_ids, got none"
            : "expert_ids: want them with routing_weights, got none");
  }
  const FfnLayer& ffn = *served.layer->ffn;
  int64_t given_k = 0;
  if (request_.has_expert_ids()) {
    if (ffn.dense()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expert_ids: want none, layer ", request_.layer(), " is dense"));
    }
    MOE_ASSIGN_OR_RETURN(routing_, CheckRouting(request_.expert_ids(),
                                                request_.routing_weights(),
                                                tokens, ffn.num_experts()));
    given_k = routing_->ids.cols;
  }
  SetLayer(std::move(served), given_k, /*route_only=*/false);
  int64_t answer_bytes = tokens * ffn.d_model() * ElementBytes(output_dtype_);
  if (request_.return_routing()) {
    answer_bytes += tokens * RoutingColumns(*this) *
                    (ElementBytes(v1::I32) + ElementBytes(v1::F32));
  }
  return CheckAnswer(limits, answer_bytes);
}

absl::StatusOr<v1::DType> ForwardWireRequest::OutputDType() const {
  switch (request_.output_dtype()) {
    case v1::DTYPE_UNSPECIFIED:
      return hidden_states_.dtype;
    case v1::F32:
    case v1::BF16:
    case v1::F16:
      return request_.output_dtype();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("output_dtype: want F32, BF16 or F16, got ",
                       static_cast<int>(request_.output_dtype())));
  }
}

void ForwardWireRequest::Encode(int64_t first, const EngineResult& rows) {
  v1::Tensor& output = *response_.mutable_output();
  if (first == 0) Reserve(output_dtype_, tokens, ffn().d_model(), output);
  EncodeRows(rows.output, first, output);
  if (!request_.return_routing() || ffn().dense()) return;
  EncodeRouting(tokens, first, rows.routing, response_);
}

absl::Status RouteWireRequest::Prepare(const ModelRegistry& registry,
                                       const ServiceLimits& limits) {
  ServedLayer served;
  MOE_RETURN_IF_ERROR(CheckInput(registry, limits, request_.request_id(),
                                 request_.model(), request_.layer(),
                                 request_.hidden_states(), &served));
  const FfnLayer& ffn = *served.layer->ffn;
  if (ffn.dense()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer: want a routed layer, ", request_.layer(), " is dense"));
  }
  SetLayer(std::move(served), /*given_k=*/0, /*route_only=*/true);
  int64_t row_bytes =
      ffn.top_k() * (ElementBytes(v1::I32) + ElementBytes(v1::F32));
  if (request_.return_router_logits()) {
    row_bytes += ffn.num_experts() * ElementBytes(v1::F32);
  }
  return CheckAnswer(limits, tokens * row_bytes);
}

void RouteWireRequest::Encode(int64_t first, const EngineResult& rows) {
  EncodeRouting(tokens, first, rows.routing, response_);
  if (!request_.return_router_logits()) return;
  v1::Tensor& logits = *response_.mutable_router_logits();
  if (first == 0) Reserve(v1::F32, tokens, ffn().num_experts(), logits);
  EncodeRows(rows.router_logits, first, logits);
}

}  // namespace moe
