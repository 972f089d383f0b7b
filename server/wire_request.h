// Engine requests made of wire messages: checks them, and moves rows between
// messages and batches.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/v1/moe.pb.h"
#include "server/engine.h"
#include "server/model_registry.h"
#include "server/tensor_codec.h"
#include "server/wire_message.h"

namespace moe {

// What a request may ask for.
struct ServiceLimits {
  int64_t max_message_bytes = 0;
  int64_t max_request_tokens = 0;
};

// Base of the two kinds of request.
class WireRequest : public EngineRequest {
 public:
  void Decode(int64_t first, Matrix hidden_states) const final;
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const final;

  // The answer, once the last rows have been encoded.
  grpc::ByteBuffer TakeAnswer() { return answer_.Take(); }
  const std::string& request_id() const { return request_id_; }

 protected:
  // answer_field: field of the message that the answer is part of; 0 = none.
  explicit WireRequest(int answer_field) : answer_field_(answer_field) {}

  // Checks the hidden states and finds the layer.
  absl::Status CheckInput(const ModelRegistry& registry,
                          const ServiceLimits& limits, const std::string& model,
                          int32_t layer_index, const WireTensor& hidden_states,
                          ServedLayer* layer);
  // Sets `bytes` for an answer with `answer_bytes` of tensors.
  // Errors: INVALID_ARGUMENT if they don't fit into a message.
  absl::Status CheckAnswer(const ServiceLimits& limits, int64_t answer_bytes);
  // Lays out the answer.
  void ReserveAnswer(absl::Span<const AnswerBytes::TensorPlan> tensors) {
    answer_.Reserve(request_id_, tensors, answer_field_);
  }

  TensorData data_;
  std::string request_id_;
  WireMatrix hidden_states_;
  std::optional<WireRouting> routing_;  // given by the caller
  AnswerBytes answer_;

 private:
  const int answer_field_;
};

// Runs a layer.
class ForwardWireRequest : public WireRequest {
 public:
  explicit ForwardWireRequest(int answer_field = 0)
      : WireRequest(answer_field) {}

  // message: a v1::ForwardRequest; the object keeps its slices.
  // Errors: INVALID_ARGUMENT, UNIMPLEMENTED naming the field; those of
  // ModelRegistry::FindLayer. Call it once.
  absl::Status Prepare(const grpc::ByteBuffer& message,
                       const ModelRegistry& registry,
                       const ServiceLimits& limits);
  void Encode(int64_t first, const EngineResult& rows) override;

 private:
  absl::StatusOr<v1::DType> OutputDType(v1::DType asked) const;

  v1::DType output_dtype_ = v1::F32;
  bool return_routing_ = false;
};

// Chooses experts.
class RouteWireRequest : public WireRequest {
 public:
  explicit RouteWireRequest(int answer_field = 0) : WireRequest(answer_field) {}

  // message: a v1::RouteRequest. As ForwardWireRequest::Prepare.
  absl::Status Prepare(const grpc::ByteBuffer& message,
                       const ModelRegistry& registry,
                       const ServiceLimits& limits);
  void Encode(int64_t first, const EngineResult& rows) override;

 private:
  bool return_router_logits_ = false;
};

}  // namespace moe
