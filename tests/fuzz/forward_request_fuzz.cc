// The wire: bytes of a ForwardRequest or a RouteRequest (by the first byte),
// checked as the service checks them; what passes is decoded, and an answer is
// encoded.

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "experts/executor.h"
#include "experts/local_expert_shard.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "router/model.h"
#include "server/model_registry.h"
#include "server/wire_message.h"
#include "server/wire_request.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr moe::ServiceLimits kLimits = {.max_message_bytes = 1 << 20,
                                        .max_request_tokens = 64};

// A registry with the demo model: routed layers 0 and 1, dense layer 2, rows of
// 256 values.
class Models {
 public:
  Models() : executor_(1), workspace_(&executor_) {
    auto served = std::make_shared<moe::ServedModel>();
    served->name = "demo";
    served->model = moe::MakeDemoModel(executor_, &workspace_);
    served->layer_metrics.resize(served->model->layers().size());
    registry_.Publish(std::move(served));
  }
  const moe::ModelRegistry& registry() const { return registry_; }

 private:
  moe::Executor executor_;
  moe::ExpertWorkspace workspace_;
  moe::ModelRegistry registry_;
};

// A request without a call.
template <typename Base>
struct Offline final : Base {
  using Base::Base;
  bool Cancelled() const override { return false; }
  void Finish(const absl::Status&) override {}
};

// As the engine does, in two parts, with results of the right shape.
void MoveRows(moe::WireRequest& request) {
  const int64_t tokens = request.tokens;
  const moe::FfnLayer& ffn = request.ffn();
  const int64_t given_k = request.key.given_k;
  const int64_t k = given_k > 0 ? given_k : ffn.top_k();
  MOE_CHECK(tokens >= 0 && tokens <= kLimits.max_request_tokens);
  MOE_CHECK(request.bytes >= 0);
  for (int64_t first = 0, count = (tokens + 1) / 2;;
       first += count, count = tokens - first) {
    std::vector<float> rows(static_cast<size_t>(count * ffn.d_model()));
    std::vector<int32_t> ids(static_cast<size_t>(count * k));
    std::vector<float> weights(ids.size());
    std::vector<float> logits(static_cast<size_t>(count * ffn.num_experts()));
    const moe::Matrix states(rows.data(), count, ffn.d_model());
    const moe::MatrixView<int32_t> id_rows(ids.data(), count, k);
    const moe::Matrix weight_rows(weights.data(), count, k);
    request.Decode(first, states);
    if (given_k > 0) request.DecodeRouting(first, id_rows, weight_rows);
    for (const int32_t id : ids) {
      MOE_CHECK(id >= -1 && id < ffn.num_experts());
    }
    request.Encode(first, {.output = states,
                           .routing = {.ids = id_rows, .weights = weight_rows},
                           .router_logits = moe::ConstMatrix(
                               logits.data(), count, ffn.num_experts())});
    if (first + count >= tokens) return;
  }
}

// The bytes in pieces, whose ends wander with the input.
grpc::ByteBuffer InPieces(absl::string_view bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = 1 + static_cast<uint8_t>(bytes[at]) % 97;
    slices.emplace_back(std::string(bytes.substr(at, size)));
    at += size;
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Protobuf and the service read the same from the same bytes.
template <typename Message>
void CompareParsers(absl::string_view bytes, const grpc::ByteBuffer& buffer) {
  using moe::v1::ForwardRequest;
  constexpr int kFirst = ForwardRequest::kHiddenStatesFieldNumber;
  constexpr bool kForward = std::is_same_v<Message, ForwardRequest>;
  Message want;
  Message got;
  moe::TensorData data;
  const bool parsed = data.Parse(
      buffer, kFirst,
      kForward ? ForwardRequest::kRoutingWeightsFieldNumber : kFirst, &got);
  MOE_CHECK(parsed ==
            want.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  if (!parsed) return;
  const auto move_data = [&](int field, moe::v1::Tensor* tensor) {
    const moe::WireTensor wire = data.Tensor(field, *tensor);
    std::string moved(wire.size, '\0');
    wire.data.CopyTo(moved.data(), moved.size());
    tensor->set_data(moved);
  };
  if (got.has_hidden_states()) {
    move_data(kFirst, got.mutable_hidden_states());
  }
  if constexpr (kForward) {
    if (got.has_expert_ids()) {
      move_data(ForwardRequest::kExpertIdsFieldNumber,
                got.mutable_expert_ids());
    }
    if (got.has_routing_weights()) {
      move_data(ForwardRequest::kRoutingWeightsFieldNumber,
                got.mutable_routing_weights());
    }
  }
  MOE_CHECK(got.SerializeAsString() == want.SerializeAsString());
}

template <typename Message, typename Response, typename Request>
void Run(absl::string_view bytes) {
  static const Models models;
  const grpc::ByteBuffer buffer = InPieces(bytes);
  CompareParsers<Message>(bytes, buffer);
  Offline<Request> request;
  const absl::Status status =
      request.Prepare(buffer, models.registry(), kLimits);
  if (!status.ok()) {
    moe::CheckError(status, "");
    return;
  }
  MoveRows(request);
  grpc::ByteBuffer answer = request.TakeAnswer();
  MOE_CHECK(answer.Length() <= static_cast<size_t>(kLimits.max_message_bytes));
  Response response;
  MOE_CHECK(grpc::SerializationTraits<Response>::Deserialize(&answer, &response)
                .ok());
  MOE_CHECK(response.request_id() == request.request_id());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes = moe::TextOf(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    Run<moe::v1::ForwardRequest, moe::v1::ForwardResponse,
        moe::ForwardWireRequest>(bytes);
  } else {
    Run<moe::v1::RouteRequest, moe::v1::RouteResponse, moe::RouteWireRequest>(
        bytes);
  }
  return 0;
}
