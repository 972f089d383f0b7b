#include "server/shards/shard_request.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "experts/base/status_macros.h"
#include "moe/shards/shards.pb.h"
#include "router/ffn_layer.h"
#include "server/engine/engine_request.h"
#include "server/engine/layer_call.h"
#include "server/rpc/response_plan.h"
#include "server/wire/message_head.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_fields.h"
#include "server/wire/wire_message.h"

namespace moe {
namespace {

// For each token of the engine: its expert, its row of the hidden states, and
// the factor on the input.
struct Assignments {
  std::vector<int32_t> experts;
  std::vector<int32_t> rows;
  std::vector<float> scales;
};

// Checks that the experts of a request are held, and are those it wants.
absl::Status CheckExperts(const shards::ForwardExpertsRequest& request,
                          const ModelLayer& layer) {
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

// num_rows: of the hidden states
absl::Status CheckRows(const shards::ForwardExpertsRequest& request,
                       int64_t num_rows) {
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
    if (row < 0 || row >= num_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows: want 0 to ", num_rows - 1,
                       ", rows of hidden_states, got ", row));
    }
  }
  if (request.input_scales_size() != 0 &&
      request.input_scales_size() != request.rows_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input_scales: want none or one for each of ", request.rows_size(),
        " rows, got ", request.input_scales_size()));
  }
  return absl::OkStatus();
}

// Requires: CheckRows.
Assignments AssignmentsOf(const shards::ForwardExpertsRequest& request) {
  Assignments result;
  result.rows.assign(request.rows().begin(), request.rows().end());
  result.scales.assign(request.input_scales().begin(),
                       request.input_scales().end());
  result.scales.resize(result.rows.size(), 1.0F);
  for (int i = 0; i < request.experts_size(); ++i) {
    result.experts.insert(result.experts.end(),
                          static_cast<size_t>(request.row_counts(i)),
                          request.experts(i));
  }
  return result;
}

class ExpertsCodec final : public RequestCodec {
 public:
  // data: what the hidden states are a view of
  ExpertsCodec(TensorData data, const WireMatrix& hidden_states,
               Assignments assignments, ResponsePlan plan,
               OutgoingMessage* response)
      : data_(std::move(data)),
        hidden_states_(hidden_states),
        assignments_(std::move(assignments)),
        plan_(std::move(plan)),
        response_(*response) {}

  void Decode(int64_t first, Matrix hidden_states) const override {
    for (int64_t i = 0; i < hidden_states.rows(); ++i) {
      const int32_t row = assignments_.rows[static_cast<size_t>(first + i)];
      moe::Decode(hidden_states_.Rows(row, 1), hidden_states.Rows(i, 1));
    }
  }
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override {
    std::copy_n(assignments_.experts.begin() + first, ids.rows(), ids.data());
    std::copy_n(assignments_.scales.begin() + first, weights.rows(),
                weights.data());
  }
  void LayOut() override {
    const ResponsePlan::Tensor& output = plan_.tensors().front();
    const OutgoingMessage::TensorPlan plan{
        .field = shards::ForwardExpertsResponse::kOutputFieldNumber,
        .dtype = output.dtype,
        .rows = plan_.tokens(),
        .cols = output.columns};
    response_.Reserve("", absl::MakeConstSpan(&plan, 1), /*inside_field=*/0);
  }
  void Encode(int64_t first, const EngineResult& rows) override {
    plan_.Encode(first, rows, response_);
  }

 private:
  const TensorData data_;
  const WireMatrix hidden_states_;
  const Assignments assignments_;
  const ResponsePlan plan_;
  OutgoingMessage& response_;
};

// Reads the lists of a request, which may be as long as the experts that are
// held, and the rows that an answer has room for, make sense of.
absl::Status ReadLists(const TensorData& data, size_t max_experts,
                       size_t max_rows,
                       shards::ForwardExpertsRequest* request) {
  using Message = shards::ForwardExpertsRequest;
  if (request->experts_size() + request->fingerprints_size() +
          request->row_counts_size() + request->rows_size() +
          request->input_scales_size() !=
      0) {
    return absl::InvalidArgumentError(
        "experts, fingerprints, row_counts, rows, input_scales: want each as "
        "one packed list");
  }
  constexpr size_t kIndex = 5;  // what is not negative, as a varint
  const struct {
    const char* name;
    int field;
    size_t max_bytes;
  } lists[] = {
      {"experts", Message::kExpertsFieldNumber, max_experts * kIndex},
      {"fingerprints", Message::kFingerprintsFieldNumber,
       max_experts * sizeof(uint64_t)},
      {"row_counts", Message::kRowCountsFieldNumber, max_experts * kIndex},
      {"rows", Message::kRowsFieldNumber, max_rows * kIndex},
      {"input_scales", Message::kInputScalesFieldNumber,
       max_rows * sizeof(float)}};
  for (const auto& list : lists) {
    const TensorData::List in_place = data.ListOf(list.field);
    // Shorter than any message besides tensors: what is wrong with it is told
    // with its numbers.
    if (in_place.size > std::max(list.max_bytes, kMaxHeadBytes / 8)) {
      return absl::InvalidArgumentError(
          absl::StrCat(list.name, ": want at most ", list.max_bytes,
                       " bytes here, got ", in_place.size));
    }
    std::string bytes = FieldHead(list.field, in_place.size);
    const size_t head = bytes.size();
    bytes.resize(head + in_place.size);
    in_place.bytes.CopyTo(bytes.data() + head, in_place.size);
    const SilentProtobuf silent;
    if (!request->MergeFromString(bytes)) return NoSuchMessage(*request);
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const ResponsePlan& plan, const ServiceLimits& limits) {
  if (plan.bytes() + ResponsePlan::kMaxEnvelopeBytes <=
      limits.max_message_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rows: want an answer of at most ", limits.max_message_bytes,
                   " bytes, ", plan.tokens(), " rows make ", plan.bytes(),
                   "; send fewer, or raise the shard's --max_message_bytes"));
}

}  // namespace

absl::StatusOr<ParsedRequest> ParseForwardExperts(
    const grpc::ByteBuffer& message, const ParseContext& context,
    RequestLabel* /*label*/) {
  using Message = shards::ForwardExpertsRequest;
  Message request;
  TensorData data;
  MOE_RETURN_IF_ERROR(data.Parse(message,
                                 {.first = Message::kHiddenStatesFieldNumber,
                                  .last = Message::kHiddenStatesFieldNumber},
                                 &request,
                                 {.first = Message::kExpertsFieldNumber,
                                  .last = Message::kInputScalesFieldNumber}));
  MOE_ASSIGN_OR_RETURN(
      ServedLayer served,
      context.registry.FindLayer(request.model(), request.layer()));
  const ModelLayer& layer = *served.layer;
  if (layer.held_experts.empty()) {
    return absl::FailedPreconditionError(
        "model: this server is no shard; start it with --experts");
  }
  MOE_ASSIGN_OR_RETURN(
      const WireMatrix hidden_states,
      CheckHiddenStates(data.Tensor(Message::kHiddenStatesFieldNumber,
                                    request.hidden_states()),
                        "hidden_states", layer.ffn->d_model(),
                        context.limits.max_request_tokens));
  MOE_ASSIGN_OR_RETURN(
      const v1::DType output_dtype,
      OutputDType(request.output_dtype(), hidden_states.dtype));
  MOE_RETURN_IF_ERROR(ReadLists(
      data, layer.held_experts.size(),
      static_cast<size_t>(context.limits.max_message_bytes /
                          (layer.ffn->d_model() * ElementBytes(output_dtype))),
      &request));
  MOE_RETURN_IF_ERROR(CheckExperts(request, layer));
  MOE_RETURN_IF_ERROR(CheckRows(request, hidden_states.rows));
  ParsedRequest parsed{.call = {.layer = std::move(served),
                                .tokens = request.rows_size(),
                                .given_k = 1,
                                .parts = {ResponsePart::kOutput}},
                       .response = std::make_unique<OutgoingMessage>()};
  ResponsePlan plan(parsed.call, output_dtype);
  MOE_RETURN_IF_ERROR(CheckSize(plan, context.limits));
  constexpr int64_t kAssignmentBytes = 2 * sizeof(int32_t) + sizeof(float);
  parsed.bytes = plan.bytes() + static_cast<int64_t>(message.Length()) +
                 parsed.call.tokens * kAssignmentBytes;
  parsed.codec = std::make_unique<ExpertsCodec>(
      std::move(data), hidden_states, AssignmentsOf(request), std::move(plan),
      parsed.response.get());
  return parsed;
}

}  // namespace moe
