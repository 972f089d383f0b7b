// The messages of the Open Inference Protocol as requests to the engine, and
// its responses.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/v1/moe.pb.h"
#include "server/engine/layer_call.h"
#include "server/engine/model_registry.h"
#include "server/rpc/call_request.h"

namespace moe {

// The one version that a model has.
inline constexpr absl::string_view kInferVersion = "1";

// The names of tensors, and of their element types, in this protocol.
absl::string_view InferName(ResponsePart part);
absl::string_view InferDatatype(v1::DType dtype);

// What a model name stands for: "NAME" for a model, whose layer is a parameter,
// and "NAME.layers.L" for one of its layers.
struct InferTarget {
  std::shared_ptr<const ServedModel> served;
  std::optional<int32_t> layer;

  // Whether there is a router: in the layer, or in any.
  bool routed() const;
};

// Errors: those of ModelRegistry::Find and FindLayer; NOT_FOUND for a version
// other than "1" and "".
absl::StatusOr<InferTarget> FindInferTarget(const ModelRegistry& registry,
                                            absl::string_view name,
                                            absl::string_view version);

// ModelInferRequest to ModelInferResponse: runs a layer. A `timeout` parameter
// is the deadline of the result.
absl::StatusOr<ParsedRequest> ParseInfer(const grpc::ByteBuffer& message,
                                         const ParseContext& context,
                                         RequestLabel* label);
// ModelInferRequest to ModelStreamInferResponse.
absl::StatusOr<ParsedRequest> ParseStreamedInfer(
    const grpc::ByteBuffer& message, const ParseContext& context,
    RequestLabel* label);
// The ModelStreamInferResponse to a request that failed.
grpc::ByteBuffer InferStreamError(const RequestLabel& label,
                                  const absl::Status& status,
                                  int64_t retry_after_ms);

inline constexpr UnaryMethod kModelInfer = {Method::kModelInfer, &ParseInfer};
inline constexpr StreamMethod kModelStreamInfer = {
    Method::kModelStreamInfer, &ParseStreamedInfer, &InferStreamError};

}  // namespace moe
