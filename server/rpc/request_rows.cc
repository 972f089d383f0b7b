#include "server/rpc/request_rows.h"

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "router/ffn_layer.h"

namespace moe {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

}  // namespace

absl::Status CheckRequestId(std::string* request_id) {
  const size_t size = request_id->size();
  if (size <= kMaxRequestIdBytes) return absl::OkStatus();
  request_id->clear();
  return absl::InvalidArgumentError(absl::StrCat(
      "request_id: want at most ", kMaxRequestIdBytes, " bytes, got ", size));
}

absl::StatusOr<RequestRows> RequestRows::Check(const ServedLayer& served,
                                               const Tensors& tensors,
                                               const ServiceLimits& limits) {
  const FfnLayer& ffn = *served.layer->ffn;
  if (!ffn.dense() && !ffn.has_router()) {
    return absl::FailedPreconditionError(
        "model: this server is a shard, which holds some experts and no "
        "router; call the front");
  }
  MOE_ASSIGN_OR_RETURN(
      const WireMatrix hidden_states,
      CheckHiddenStates(tensors.hidden_states, "hidden_states", ffn.d_model(),
                        limits.max_request_tokens));
  const bool ids = tensors.expert_ids != nullptr;
  if (ids != (tensors.routing_weights != nullptr)) {
    return absl::InvalidArgumentError(
        ids ? "routing_weights: want them with expert_ids, got none"
            : "expert_ids: want them with routing_weights, got none");
  }
  if (!ids) return RequestRows(hidden_states, std::nullopt);
  if (ffn.dense()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expert_ids: want none, layer ", served.layer->index, " is dense"));
  }
  MOE_ASSIGN_OR_RETURN(
      const WireRouting routing,
      CheckRouting(*tensors.expert_ids, *tensors.routing_weights,
                   hidden_states.rows, ffn.num_experts()));
  return RequestRows(hidden_states, routing);
}

void RequestRows::Decode(int64_t first, Matrix hidden_states) const {
  moe::Decode(hidden_states_.Rows(first, hidden_states.rows()), hidden_states);
}

void RequestRows::DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                                Matrix weights) const {
  DecodeIds(routing_->ids.Rows(first, ids.rows()), ids);
  moe::Decode(routing_->weights.Rows(first, weights.rows()), weights);
}

}  // namespace moe
