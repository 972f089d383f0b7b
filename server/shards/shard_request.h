// What a front asks of a shard, as a request to the engine: rows through some
// experts of a layer.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/shards/shards.pb.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"
#include "server/rpc/wire_request.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_message.h"

namespace moe {

// shards::ForwardExpertsRequest to shards::ForwardExpertsResponse.
//
// Each of its rows is a token of the engine with one given expert, whose
// routing weight is the factor on the expert's input, or 1: what comes out is
// the expert's output itself.
class ExpertsWireRequest : public EngineRequest {
 public:
  // As WireRequest::Prepare.
  // Errors: INVALID_ARGUMENT, UNIMPLEMENTED naming the field;
  // FAILED_PRECONDITION if the model is loading, its layer is no shard, or its
  // experts are not those that the caller wants; NOT_FOUND.
  absl::Status Prepare(const grpc::ByteBuffer& message,
                       const ModelRegistry& registry,
                       const ServiceLimits& limits);

  void Decode(int64_t first, Matrix hidden_states) const override;
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override;
  void Encode(int64_t first, const EngineResult& rows) override;

  // The answer, once the last rows have been encoded.
  grpc::ByteBuffer TakeAnswer() { return answer_.Take(); }

 private:
  absl::Status CheckExperts(const shards::ForwardExpertsRequest& request,
                            const ModelLayer& layer);
  absl::Status CheckRows(const shards::ForwardExpertsRequest& request);

  TensorData data_;
  WireMatrix hidden_states_;
  // Of each token of the engine: its expert, its row of hidden_states_, and the
  // factor on the input.
  std::vector<int32_t> experts_;
  std::vector<int32_t> rows_;
  std::vector<float> scales_;
  v1::DType output_dtype_ = v1::F32;
  AnswerBytes answer_;
};

}  // namespace moe
