// Engine requests made of wire messages: checks them, and moves rows between
// messages and batches.

#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "moe/v1/moe.pb.h"
#include "server/engine.h"
#include "server/model_registry.h"
#include "server/tensor_codec.h"

namespace moe {

// What a request may ask for.
struct ServiceLimits {
  int64_t max_message_bytes = 0;
  int64_t max_request_tokens = 0;
};

// Base of the two kinds of request. Messages must outlive the object.
class WireRequest : public EngineRequest {
 public:
  void Decode(int64_t first, Matrix hidden_states) const final;
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const final;

 protected:
  // Checks the hidden states and finds the layer.
  absl::Status CheckInput(const ModelRegistry& registry,
                          const ServiceLimits& limits,
                          absl::string_view request_id,
                          const std::string& model, int32_t layer_index,
                          const v1::Tensor& hidden_states, ServedLayer* layer);
  // Sets `bytes` for an answer with `answer_bytes` of tensors.
  // Errors: INVALID_ARGUMENT if they don't fit into a message.
  absl::Status CheckAnswer(const ServiceLimits& limits, int64_t answer_bytes);

  WireMatrix hidden_states_;
  std::optional<WireRouting> routing_;  // given by the caller
};

// Runs a layer.
class ForwardWireRequest : public WireRequest {
 public:
  ForwardWireRequest(const v1::ForwardRequest* request,
                     v1::ForwardResponse* response)
      : request_(*request), response_(*response) {}

  // Errors: INVALID_ARGUMENT, UNIMPLEMENTED naming the field; those of
  // ModelRegistry::FindLayer.
  absl::Status Prepare(const ModelRegistry& registry,
                       const ServiceLimits& limits);
  void Encode(int64_t first, const EngineResult& rows) override;

 private:
  absl::StatusOr<v1::DType> OutputDType() const;

  const v1::ForwardRequest& request_;
  v1::ForwardResponse& response_;
  v1::DType output_dtype_ = v1::F32;
};

// Chooses experts.
class RouteWireRequest : public WireRequest {
 public:
  RouteWireRequest(const v1::RouteRequest* request, v1::RouteResponse* response)
      : request_(*request), response_(*response) {}

  // Errors: as ForwardWireRequest::Prepare.
  absl::Status Prepare(const ModelRegistry& registry,
                       const ServiceLimits& limits);
  void Encode(int64_t first, const EngineResult& rows) override;

 private:
  const v1::RouteRequest& request_;
  v1::RouteResponse& response_;
};

}  // namespace moe
