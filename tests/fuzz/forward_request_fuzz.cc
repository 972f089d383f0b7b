// The wire: bytes of a ForwardRequest or a RouteRequest (by the first byte),
// checked as the service checks them; what passes is decoded, and a response is
// encoded.

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/moe_v1/moe_request.h"
#include "server/wire/wire_message.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/request_target.h"

namespace {

// Protobuf and the service read the same from the same bytes.
template <typename Message>
void CompareParsers(absl::string_view bytes, const grpc::ByteBuffer& buffer) {
  using moe::v1::ForwardRequest;
  constexpr int kFirst = ForwardRequest::kHiddenStatesFieldNumber;
  constexpr bool kForward = std::is_same_v<Message, ForwardRequest>;
  Message want;
  Message got;
  moe::TensorData data;
  const absl::Status status = data.Parse(
      buffer,
      {kFirst, kForward ? ForwardRequest::kRoutingWeightsFieldNumber : kFirst},
      &got);
  // More than there may be besides tensors is for the service to refuse.
  if (absl::StrContains(status.message(), "at most")) return;
  MOE_CHECK(status.ok() ==
            want.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  if (!status.ok()) return;
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

template <typename Message, typename Response>
void Run(moe::ParseFunction* parse, absl::string_view bytes) {
  const grpc::ByteBuffer buffer = moe::InPieces(bytes);
  CompareParsers<Message>(bytes, buffer);
  Response response;
  const auto id = moe::RespondOffline(parse, buffer, &response);
  MOE_CHECK(!id.has_value() || response.request_id() == *id);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes = moe::TextOf(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    Run<moe::v1::ForwardRequest, moe::v1::ForwardResponse>(&moe::ParseForward,
                                                           bytes);
  } else {
    Run<moe::v1::RouteRequest, moe::v1::RouteResponse>(&moe::ParseRoute, bytes);
  }
  return 0;
}
