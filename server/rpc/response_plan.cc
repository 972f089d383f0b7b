#include "server/rpc/response_plan.h"

#include "absl/strings/str_cat.h"
#include "router/ffn_layer.h"
#include "server/wire/tensor_codec.h"

namespace moe {
namespace {

v1::DType DTypeOf(ResponsePart part, v1::DType output_dtype) {
  switch (part) {
    case ResponsePart::kOutput:
      return output_dtype;
    case ResponsePart::kExpertIds:
      return v1::I32;
    default:
      return v1::F32;
  }
}

int64_t ColumnsOf(ResponsePart part, const LayerCall& call) {
  switch (part) {
    case ResponsePart::kOutput:
      return call.ffn().d_model();
    case ResponsePart::kRouterLogits:
      return call.ffn().num_experts();
    default:
      return call.k();
  }
}

}  // namespace

ResponsePlan::ResponsePlan(const LayerCall& call, v1::DType output_dtype)
    : tokens_(call.tokens) {
  for (const ResponsePart part : call.parts) {
    tensors_.push_back({.part = part,
                        .dtype = DTypeOf(part, output_dtype),
                        .columns = ColumnsOf(part, call)});
  }
}

int64_t ResponsePlan::bytes() const {
  int64_t row_bytes = 0;
  for (const Tensor& tensor : tensors_) row_bytes += tensor.row_bytes();
  return tokens_ * row_bytes;
}

absl::Status ResponsePlan::CheckSize(const ServiceLimits& limits) const {
  if (bytes() + kMaxEnvelopeBytes <= limits.max_message_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "hidden_states.shape: want an answer of at most ",
      limits.max_message_bytes, " bytes, ", tokens_, " tokens make ", bytes(),
      "; send fewer, or ask for another output_dtype"));
}

void ResponsePlan::Encode(int64_t first, const EngineResult& rows,
                          const OutgoingMessage& message) const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    char* to = message.Row(i, first);
    switch (tensor.part) {
      case ResponsePart::kOutput:
        EncodeRows(rows.output, tensor.dtype, to);
        break;
      case ResponsePart::kExpertIds:
        EncodeRows(rows.routing.ids, to);
        break;
      case ResponsePart::kRoutingWeights:
        EncodeRows(rows.routing.weights, tensor.dtype, to);
        break;
      case ResponsePart::kRouterLogits:
        EncodeRows(rows.router_logits, tensor.dtype, to);
        break;
    }
  }
}

}  // namespace moe
