// What a front sends to a shard, and what it takes from it.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "experts/base/expert_batch.h"
#include "experts/base/matrix_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/shards/shards.pb.h"
#include "server/shards/spread_layer.h"

namespace moe {

// Writes shards::ForwardExpertsRequest messages. Thread-compatible.
class ShardRequestWriter {
 public:
  // The rows that some experts have in a batch, each row of hidden states once.
  //
  // experts: ascending, each with rows in the batch
  // dtype:   F32 or BF16, of the rows there and back
  grpc::ByteBuffer Write(const SpreadLayer& layer, const ExpertBatch& batch,
                         absl::Span<const int32_t> experts, v1::DType dtype);

 private:
  std::vector<int32_t> sent_row_;  // [tokens], -1 = not sent
  std::vector<int32_t> tokens_;    // that are sent
};

// Takes a shards::ForwardExpertsResponse: writes the outputs of those experts
// to their places in `out` [assignments, d_model]. Errors: INTERNAL naming the
// field; `out` is as before then.
absl::Status ReadShardResponse(const grpc::ByteBuffer& message,
                               const ExpertBatch& batch,
                               absl::Span<const int32_t> experts, Matrix out);

// Rows that an expert has in a batch.
inline int64_t RowsOf(const ExpertBatch& batch, int64_t expert) {
  const auto e = static_cast<size_t>(expert);
  return batch.offsets[e + 1] - batch.offsets[e];
}

}  // namespace moe
