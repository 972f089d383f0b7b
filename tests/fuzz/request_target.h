// What the fuzz targets for requests share: models to ask for, and an engine's
// part in a request.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "experts/base/check.h"
#include "experts/base/no_destructor.h"
#include "experts/executor.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "router/models/model.h"
#include "server/engine/model_registry.h"
#include "server/rpc/call_request.h"
#include "tests/fuzz/fuzz_target.h"

namespace moe {

inline constexpr ServiceLimits kLimits = {.max_message_bytes = 1 << 20,
                                          .max_request_tokens = 64};

// A registry with the demo model: routed layers 0 and 1, dense layer 2, rows of
// 256 values.
class Models {
 public:
  explicit Models(const LoadOptions& options = {}) {
    Executor executor(1);
    auto served = std::make_shared<ServedModel>();
    served->name = "demo";
    served->model = *LoadDemoModel(options, executor);
    served->layer_metrics.resize(served->model->layers().size());
    registry_.Publish(std::move(served));
  }
  const ModelRegistry& registry() const { return registry_; }

 private:
  ModelRegistry registry_;
};

// As the engine does, in two parts, with results of the right shape.
inline void MoveRows(const ParsedRequest& request) {
  const int64_t tokens = request.call.tokens;
  const FfnLayer& ffn = request.call.ffn();
  const int64_t given_k = request.call.given_k;
  const int64_t k = request.call.k();
  MOE_CHECK(tokens >= 0 && tokens * ffn.d_model() <= kLimits.max_message_bytes);
  MOE_CHECK(request.bytes >= 0);
  request.codec->LayOut();
  for (int64_t first = 0, count = (tokens + 1) / 2;;
       first += count, count = tokens - first) {
    std::vector<float> rows(static_cast<size_t>(count * ffn.d_model()));
    std::vector<int32_t> ids(static_cast<size_t>(count * k));
    std::vector<float> weights(ids.size());
    std::vector<float> logits(static_cast<size_t>(count * ffn.num_experts()));
    const Matrix states(rows.data(), count, ffn.d_model());
    const MatrixView<int32_t> id_rows(ids.data(), count, k);
    const Matrix weight_rows(weights.data(), count, k);
    request.codec->Decode(first, states);
    if (given_k > 0) request.codec->DecodeRouting(first, id_rows, weight_rows);
    for (const int32_t id : ids) {
      MOE_CHECK(id >= -1 && id < ffn.num_experts());
    }
    request.codec->Encode(
        first, {.output = states,
                .routing = {.ids = id_rows, .weights = weight_rows},
                .router_logits =
                    ConstMatrix(logits.data(), count, ffn.num_experts())});
    if (first + count >= tokens) return;
  }
}

// The bytes in pieces, whose ends wander with the input.
inline grpc::ByteBuffer InPieces(absl::string_view bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = 1 + static_cast<uint8_t>(bytes[at]) % 97;
    slices.emplace_back(std::string(bytes.substr(at, size)));
    at += size;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// What a service makes of a request: an error that blames the caller, of which
// there is nothing to be returned then, or a response.
template <typename Response>
std::optional<ParsedRequest> RespondOffline(ParseFunction* parse,
                                            const Models& models,
                                            const grpc::ByteBuffer& bytes,
                                            RequestLabel* label,
                                            Response* response) {
  absl::StatusOr<ParsedRequest> request = parse(
      bytes,
      {.registry = models.registry(), .limits = kLimits, .now = SteadyTime()},
      label);
  if (!request.ok()) {
    CheckError(request.status(), "");
    return std::nullopt;
  }
  MoveRows(*request);
  grpc::ByteBuffer message = request->response->Take();
  MOE_CHECK(message.Length() <= static_cast<size_t>(kLimits.max_message_bytes));
  MOE_CHECK(grpc::SerializationTraits<Response>::Deserialize(&message, response)
                .ok());
  return *std::move(request);
}

// Likewise with the demo model. Returns the id that the response has to carry.
template <typename Response>
std::optional<std::string> RespondOffline(ParseFunction* parse,
                                          const grpc::ByteBuffer& bytes,
                                          Response* response) {
  static const NoDestructor<Models> models;
  RequestLabel label;
  const auto request = RespondOffline(parse, *models, bytes, &label, response);
  if (!request.has_value()) return std::nullopt;
  MOE_CHECK(request->call.tokens <= kLimits.max_request_tokens);
  return label.request_id;
}

}  // namespace moe
