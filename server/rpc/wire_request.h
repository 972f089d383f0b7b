// Engine requests made of wire messages: checks them, and moves rows between
// messages and batches. What is the same in every protocol is in WireRequest.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/v1/moe.pb.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_message.h"

namespace moe {

// What a request may ask for.
struct ServiceLimits {
  int64_t max_message_bytes = 0;
  int64_t max_request_tokens = 0;
  absl::Duration send_timeout = absl::Minutes(2);
};

// The matrices that an answer may have.
enum class AnswerPart : uint8_t {
  kOutput,
  kExpertIds,
  kRoutingWeights,
  kRouterLogits
};

// A request to run a layer, or its router. Subclasses say how it and its answer
// are written.
class WireRequest : public EngineRequest {
 public:
  // Parses and checks a message, whose slices the object keeps. Once.
  // Errors: INVALID_ARGUMENT, UNIMPLEMENTED naming the field; those of
  // ModelRegistry::FindLayer.
  virtual absl::Status Prepare(const grpc::ByteBuffer& message,
                               const ModelRegistry& registry,
                               const ServiceLimits& limits) = 0;

  void Decode(int64_t first, Matrix hidden_states) const final;
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const final;
  void Encode(int64_t first, const EngineResult& rows) final;

  // The answer, once the last rows have been encoded.
  grpc::ByteBuffer TakeAnswer() { return answer_.Take(); }
  const std::string& request_id() const { return request_id_; }

 protected:
  // The tensors of a request, wherever they are; the routing is given by both
  // or neither.
  struct Tensors {
    const WireTensor& hidden_states;
    const WireTensor* expert_ids = nullptr;
    const WireTensor* routing_weights = nullptr;
  };

  absl::Status CheckRequestId();
  // Checks the tensors against the layer.
  absl::Status CheckTensors(const ServedLayer& served, const Tensors& tensors,
                            const ServiceLimits& limits);
  // Sets what will be answered, and thereby `key` and `bytes`. Without an
  // output, the router alone runs. After CheckTensors.
  // Errors: INVALID_ARGUMENT if the answer does not fit into a message.
  absl::Status SetAnswer(ServedLayer served, absl::Span<const AnswerPart> parts,
                         v1::DType output_dtype, const ServiceLimits& limits);

  // Makes room in `answer` for all answer_parts(), in their order.
  virtual void LayOut(AnswerBytes& answer) const = 0;
  // Writes what only the engine can tell, timing() and left_out(), if the
  // protocol has a place for it. With each part of the rows, after LayOut.
  virtual void Annotate(AnswerBytes& /*answer*/) const {}
  // Experts that have been left out so far.
  int64_t left_out() const { return left_out_; }
  absl::Span<const AnswerPart> answer_parts() const { return parts_; }
  // Of a part: [tokens, columns].
  v1::DType DTypeOf(AnswerPart part) const;
  int64_t ColumnsOf(AnswerPart part) const;
  // That of the hidden states. After CheckTensors.
  v1::DType input_dtype() const { return hidden_states_.dtype; }

  std::string request_id_;

 private:
  WireMatrix hidden_states_;
  std::optional<WireRouting> routing_;  // given by the caller
  absl::InlinedVector<AnswerPart, 4> parts_;
  v1::DType output_dtype_ = v1::F32;
  AnswerBytes answer_;
  int64_t left_out_ = 0;
};

// A request of moe.v1.
class MoeWireRequest : public WireRequest {
 protected:
  // answer_field: field of the message that the answer is part of; 0 = none.
  explicit MoeWireRequest(int answer_field) : answer_field_(answer_field) {}

  void LayOut(AnswerBytes& answer) const final;
  void Annotate(AnswerBytes& answer) const final;
  // Fields of the answer with what only the engine can tell: always as many
  // bytes, for they are written again with each part of the rows.
  virtual std::string Annotations() const { return ""; }
  // The field of the answer that holds a part.
  virtual int FieldOf(AnswerPart part) const = 0;

  TensorData data_;

 private:
  const int answer_field_;
};

// v1::ForwardRequest to v1::ForwardResponse: runs a layer.
class ForwardWireRequest : public MoeWireRequest {
 public:
  ForwardWireRequest() : MoeWireRequest(0) {}
  // For ForwardStream.
  struct Streamed {};
  explicit ForwardWireRequest(Streamed /*unused*/)
      : MoeWireRequest(v1::ForwardStreamResponse::kResponseFieldNumber) {}

  absl::Status Prepare(const grpc::ByteBuffer& message,
                       const ModelRegistry& registry,
                       const ServiceLimits& limits) override;
  // The v1::ForwardStreamResponse of a request that failed.
  grpc::ByteBuffer StreamError(const absl::Status& status,
                               int64_t retry_after_ms) const;

 private:
  int FieldOf(AnswerPart part) const override;
  std::string Annotations() const override;
};

// v1::RouteRequest to v1::RouteResponse: chooses experts.
class RouteWireRequest : public MoeWireRequest {
 public:
  RouteWireRequest() : MoeWireRequest(0) {}

  absl::Status Prepare(const grpc::ByteBuffer& message,
                       const ModelRegistry& registry,
                       const ServiceLimits& limits) override;

 private:
  int FieldOf(AnswerPart part) const override;
};

}  // namespace moe
