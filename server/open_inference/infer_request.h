// Engine requests made of messages of the Open Inference Protocol.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/inference.pb.h"
#include "server/engine/model_registry.h"
#include "server/rpc/wire_request.h"
#include "server/wire/infer_message.h"

namespace moe {

// The one version that a model has.
inline constexpr absl::string_view kInferVersion = "1";

// The names of tensors, and of their element types, in this protocol.
absl::string_view InferName(AnswerPart part);
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

// ModelInferRequest to ModelInferResponse: runs a layer.
class InferWireRequest : public WireRequest {
 public:
  InferWireRequest() : answer_field_(0) {}
  // For ModelStreamInfer.
  struct Streamed {};
  explicit InferWireRequest(Streamed /*unused*/)
      : answer_field_(
            inference::ModelStreamInferResponse::kInferResponseFieldNumber) {}

  // Besides what the base class says: a `timeout` parameter makes the deadline
  // earlier.
  absl::Status Prepare(const grpc::ByteBuffer& message,
                       const ModelRegistry& registry,
                       const ServiceLimits& limits) override;
  // The ModelStreamInferResponse of a request that failed.
  grpc::ByteBuffer StreamError(const absl::Status& status,
                               int64_t retry_after_ms) const;

 private:
  // What the parameters of a request say.
  struct Parameters {
    std::optional<int32_t> layer;
    std::optional<v1::DType> output_dtype;
  };

  absl::StatusOr<Parameters> ReadParameters();
  absl::StatusOr<ServedLayer> FindLayer(const ModelRegistry& registry,
                                        std::optional<int32_t> layer) const;
  // The index of each input by its name, -1 if there is none.
  struct Inputs {
    int hidden_states = -1;
    int expert_ids = -1;
    int routing_weights = -1;
  };
  absl::StatusOr<Inputs> FindInputs() const;
  // Checks that the data of all inputs are there, in one way.
  absl::Status CheckRaw() const;
  // The data of input i, whose name is `name`.
  absl::StatusOr<InferMessage::Data> DataOf(int i, absl::string_view name,
                                            v1::DType dtype) const;
  // Sets the tensor's element type and shape; returns its data.
  absl::StatusOr<InferMessage::Data> ReadInput(
      int i, absl::Span<const v1::DType> wanted, v1::Tensor* head) const;
  absl::StatusOr<absl::InlinedVector<AnswerPart, 4>> RequestedParts(
      bool dense) const;
  void LayOut(AnswerBytes& answer) const override;

  const int answer_field_;
  InferMessage message_;
  bool mark_final_ = false;  // the caller wants each answer marked as the last
};

}  // namespace moe
