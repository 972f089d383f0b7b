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
#include "server/rpc/wire_request.h"
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

// A request without a call.
template <typename Base>
struct Offline final : Base {
  using Base::Base;
  bool Cancelled() const override { return false; }
  void Finish(const absl::Status& /*status*/) override {}
};

// As the engine does, in two parts, with results of the right shape.
inline void MoveRows(EngineRequest& request) {
  const int64_t tokens = request.tokens;
  const FfnLayer& ffn = request.ffn();
  const int64_t given_k = request.key.given_k;
  const int64_t k = given_k > 0 ? given_k : ffn.top_k();
  MOE_CHECK(tokens >= 0 && tokens * ffn.d_model() <= kLimits.max_message_bytes);
  MOE_CHECK(request.bytes >= 0);
  for (int64_t first = 0, count = (tokens + 1) / 2;;
       first += count, count = tokens - first) {
    std::vector<float> rows(static_cast<size_t>(count * ffn.d_model()));
    std::vector<int32_t> ids(static_cast<size_t>(count * k));
    std::vector<float> weights(ids.size());
    std::vector<float> logits(static_cast<size_t>(count * ffn.num_experts()));
    const Matrix states(rows.data(), count, ffn.d_model());
    const MatrixView<int32_t> id_rows(ids.data(), count, k);
    const Matrix weight_rows(weights.data(), count, k);
    request.Decode(first, states);
    if (given_k > 0) request.DecodeRouting(first, id_rows, weight_rows);
    for (const int32_t id : ids) {
      MOE_CHECK(id >= -1 && id < ffn.num_experts());
    }
    request.Encode(first, {.output = states,
                           .routing = {.ids = id_rows, .weights = weight_rows},
                           .router_logits = ConstMatrix(logits.data(), count,
                                                        ffn.num_experts())});
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

// What the service makes of a request: an error that blames the caller, or an
// answer and the id that it has to carry.
template <typename Request, typename Response>
std::optional<std::string> AnswerOffline(const grpc::ByteBuffer& bytes,
                                         Response* response) {
  static const NoDestructor<Models> models;
  Offline<Request> request;
  const absl::Status status =
      request.Prepare(bytes, models->registry(), kLimits);
  if (!status.ok()) {
    CheckError(status, "");
    return std::nullopt;
  }
  MOE_CHECK(request.tokens <= kLimits.max_request_tokens);
  MoveRows(request);
  grpc::ByteBuffer answer = request.TakeAnswer();
  MOE_CHECK(answer.Length() <= static_cast<size_t>(kLimits.max_message_bytes));
  MOE_CHECK(
      grpc::SerializationTraits<Response>::Deserialize(&answer, response).ok());
  return request.request_id();
}

}  // namespace moe
