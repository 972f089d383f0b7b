#include "server/shards/shard_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"

namespace moe {

absl::Status ExpertsWireRequest::Prepare(const grpc::ByteBuffer& message,
                                         const ModelRegistry& registry,
                                         const ServiceLimits& limits) {
  using Message = shards::ForwardExpertsRequest;
  Message request;
  if (!data_.Parse(message, Message::kHiddenStatesFieldNumber,
                   Message::kHiddenStatesFieldNumber, &request)) {
    return absl::InvalidArgumentError(
        "request: want a moe.shards.ForwardExpertsRequest message");
  }
  MOE_ASSIGN_OR_RETURN(ServedLayer served,
                       registry.FindLayer(request.model(), request.layer()));
  const ModelLayer& layer = *served.layer;
  if (layer.held_experts.empty()) {
    return absl::FailedPreconditionError(
        "model: this server is no shard; start it with --experts");
  }
  const int64_t d_model = layer.ffn->d_model();
  MOE_ASSIGN_OR_RETURN(
      hidden_states_,
      CheckHiddenStates(data_.Tensor(Message::kHiddenStatesFieldNumber,
                                     request.hidden_states()),
                        "hidden_states", d_model, limits.max_request_tokens));
  MOE_RETURN_IF_ERROR(CheckExperts(request, layer));
  MOE_RETURN_IF_ERROR(CheckRows(request));
  MOE_ASSIGN_OR_RETURN(
      output_dtype_, OutputDType(request.output_dtype(), hidden_states_.dtype));
  tokens = static_cast<int64_t>(rows_.size());
  const int64_t answer_bytes = tokens * d_model * ElementBytes(output_dtype_);
  if (answer_bytes + 1024 > limits.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows: want an answer of at most ", limits.max_message_bytes,
        " bytes, ", tokens, " rows make ", answer_bytes,
        "; send fewer, or raise the shard's --max_message_bytes"));
  }
  bytes = answer_bytes + hidden_states_.bytes() +
          tokens * int64_t{2 * sizeof(int32_t) + sizeof(float)};
  SetLayer(std::move(served), /*given_k=*/1, /*route_only=*/false);
  return absl::OkStatus();
}

absl::Status ExpertsWireRequest::CheckExperts(
    const shards::ForwardExpertsRequest& request, const ModelLayer& layer) {
  if (request.fingerprints_size() != request.experts_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fingerprints: want one for each of ", request.experts_size(),
        " experts, got ", request.fingerprints_size()));
  }
  int32_t last = -1;
  for (int i = 0; i < request.experts_size(); ++i) {
    const int32_t expert = request.experts(i);
    if (expert <= last) {
      return absl::InvalidArgumentError(absl::StrCat(
          "experts: want ascending ids, got ", expert, " after ", last));
    }
    last = expert;
    const auto held = std::lower_bound(layer.held_experts.begin(),
                                       layer.held_experts.end(), expert);
    if (held == layer.held_experts.end() || *held != expert) {
      return absl::FailedPreconditionError(
          absl::StrCat("experts: want some that the shard holds, got ", expert,
                       " of layer ", layer.index));
    }
    const auto index = static_cast<size_t>(held - layer.held_experts.begin());
    if (layer.fingerprints[index] != request.fingerprints(i)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "fingerprints: expert ", expert, " of layer ", layer.index,
          " is another one here: other weights, weight format or release"));
    }
  }
  return absl::OkStatus();
}

absl::Status ExpertsWireRequest::CheckRows(
    const shards::ForwardExpertsRequest& request) {
  if (request.row_counts_size() != request.experts_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row_counts: want one for each of ", request.experts_size(),
        " experts, got ", request.row_counts_size()));
  }
  // 64 bits: counts may be anything until here.
  int64_t sum = 0;
  for (const int32_t count : request.row_counts()) {
    if (count < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("row_counts: want at least 1, got ", count));
    }
    sum += count;
  }
  if (sum != request.rows_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows: want the sum of row_counts, ", sum, ", got ",
                     request.rows_size()));
  }
  for (const int32_t row : request.rows()) {
    if (row < 0 || row >= hidden_states_.rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows: want 0 to ", hidden_states_.rows - 1,
                       ", rows of hidden_states, got ", row));
    }
  }
  if (request.input_scales_size() != 0 &&
      request.input_scales_size() != request.rows_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input_scales: want none or one for each of ", request.rows_size(),
        " rows, got ", request.input_scales_size()));
  }
  rows_.assign(request.rows().begin(), request.rows().end());
  scales_.assign(request.input_scales().begin(), request.input_scales().end());
  scales_.resize(rows_.size(), 1.0F);
  experts_.clear();
  for (int i = 0; i < request.experts_size(); ++i) {
    experts_.insert(experts_.end(), static_cast<size_t>(request.row_counts(i)),
                    request.experts(i));
  }
  return absl::OkStatus();
}

void ExpertsWireRequest::Decode(int64_t first, Matrix hidden_states) const {
  for (int64_t i = 0; i < hidden_states.rows(); ++i) {
    const int32_t row = rows_[static_cast<size_t>(first + i)];
    moe::Decode(hidden_states_.Rows(row, 1), hidden_states.Rows(i, 1));
  }
}

void ExpertsWireRequest::DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                                       Matrix weights) const {
  std::copy_n(experts_.begin() + first, ids.rows(), ids.data());
  std::copy_n(scales_.begin() + first, weights.rows(), weights.data());
}

void ExpertsWireRequest::Encode(int64_t first, const EngineResult& rows) {
  if (first == 0) {
    const AnswerBytes::TensorPlan plan{
        .field = shards::ForwardExpertsResponse::kOutputFieldNumber,
        .dtype = output_dtype_,
        .rows = tokens,
        .cols = ffn().d_model()};
    answer_.Reserve("", absl::MakeConstSpan(&plan, 1), /*inside_field=*/0);
  }
  EncodeRows(rows.output, output_dtype_, answer_.Row(0, first));
}

}  // namespace moe
