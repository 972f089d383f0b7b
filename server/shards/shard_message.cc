#include "server/shards/shard_message.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_message.h"

namespace moe {

grpc::ByteBuffer ShardRequestWriter::Write(const SpreadLayer& layer,
                                           const ExpertBatch& batch,
                                           absl::Span<const int32_t> experts,
                                           v1::DType dtype) {
  shards::ForwardExpertsRequest request;
  request.set_model(layer.model);
  request.set_layer(layer.layer);
  sent_row_.assign(static_cast<size_t>(batch.hidden_states.rows()), -1);
  tokens_.clear();
  for (const int32_t expert : experts) {
    const auto e = static_cast<size_t>(expert);
    request.add_experts(expert);
    request.add_fingerprints(layer.fingerprints[e]);
    request.add_row_counts(static_cast<int32_t>(RowsOf(batch, expert)));
    for (int32_t i = batch.offsets[e]; i < batch.offsets[e + 1]; ++i) {
      const int32_t token = batch.rows[static_cast<size_t>(i)];
      int32_t& row = sent_row_[static_cast<size_t>(token)];
      if (row < 0) {
        row = static_cast<int32_t>(tokens_.size());
        tokens_.push_back(token);
      }
      request.add_rows(row);
      if (!batch.input_scales.empty()) {
        request.add_input_scales(batch.input_scales[static_cast<size_t>(i)]);
      }
    }
  }
  const OutgoingMessage::TensorPlan plan{
      .field = shards::ForwardExpertsRequest::kHiddenStatesFieldNumber,
      .dtype = dtype,
      .rows = static_cast<int64_t>(tokens_.size()),
      .cols = layer.expert.d_model};
  OutgoingMessage bytes;
  bytes.Reserve(request.SerializeAsString(), absl::MakeConstSpan(&plan, 1),
                /*inside_field=*/0);
  for (size_t r = 0; r < tokens_.size(); ++r) {
    EncodeRows(batch.hidden_states.Rows(tokens_[r], 1), dtype,
               bytes.Row(0, static_cast<int64_t>(r)));
  }
  return bytes.Take();
}

absl::Status ReadShardResponse(const grpc::ByteBuffer& message,
                               const ExpertBatch& batch,
                               absl::Span<const int32_t> experts, Matrix out) {
  constexpr int kOutput = shards::ForwardExpertsResponse::kOutputFieldNumber;
  TensorData data;
  shards::ForwardExpertsResponse response;
  const absl::Status read = data.Parse(message, {kOutput, kOutput}, &response);
  if (!read.ok()) {
    return absl::InternalError(absl::StrCat(
        "answers wrongly: ", absl::StripPrefix(read.message(), "request: ")));
  }
  int64_t rows = 0;
  for (const int32_t expert : experts) rows += RowsOf(batch, expert);
  const absl::StatusOr<WireMatrix> output = CheckHiddenStates(
      data.Tensor(kOutput, response.output()), "output", out.cols(), rows);
  if (!output.ok()) {
    return absl::InternalError(
        absl::StrCat("answers wrongly: ", output.status().message()));
  }
  if (output->rows != rows) {
    return absl::InternalError(absl::StrCat("answers wrongly: output: want ",
                                            rows, " rows, got ", output->rows));
  }
  int64_t first = 0;
  for (const int32_t expert : experts) {
    const int64_t count = RowsOf(batch, expert);
    Decode(output->Rows(first, count),
           out.Rows(batch.offsets[static_cast<size_t>(expert)], count));
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace moe
