// Between front and shard, by the first byte: bytes of a ForwardExpertsRequest,
// checked and decoded as a shard does; bytes of a ForwardExpertsResponse, taken
// as a front does.

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "experts/base/no_destructor.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/shards/shards.pb.h"
#include "server/shards/shard_message.h"
#include "server/shards/shard_request.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/request_target.h"

namespace {

// A shard with some experts of the demo model.
moe::LoadOptions HeldExperts() {
  moe::LoadOptions options;
  options.part.held_experts = [](const moe::LayerSpec&) {
    return std::vector<int32_t>{0, 1, 2, 5};
  };
  return options;
}

void AskShard(const grpc::ByteBuffer& bytes) {
  static const moe::NoDestructor<moe::Models> models(HeldExperts());
  moe::shards::ForwardExpertsResponse response;
  moe::RequestLabel label;
  const auto request = moe::RespondOffline(&moe::ParseForwardExperts, *models,
                                           bytes, &label, &response);
  MOE_CHECK(!request.has_value() ||
            response.output().shape(0) == request->call.tokens);
}

// The rows of two experts, between those of others.
void RespondToFront(const grpc::ByteBuffer& bytes) {
  constexpr int64_t kDModel = 4;
  const std::vector<int32_t> offsets = {0, 1, 3, 3, 4, 5};
  const std::vector<int32_t> rows = {0, 0, 1, 1, 0};
  const std::vector<float> states(2 * kDModel);
  const moe::ExpertBatch batch{
      .hidden_states = moe::ConstMatrix(states.data(), 2, kDModel),
      .offsets = offsets,
      .rows = rows,
      .input_scales = {}};
  constexpr float kUntouched = 12345.0F;
  std::vector<float> out(5 * kDModel, kUntouched);
  const absl::Status status = moe::ReadShardResponse(
      bytes, batch, {1, 3}, moe::Matrix(out.data(), 5, kDModel));
  for (int64_t c = 0; c < kDModel; ++c) {
    for (const int64_t other : {0, 4}) {
      MOE_CHECK(out[static_cast<size_t>(other * kDModel + c)] == kUntouched);
    }
  }
  if (status.ok()) return;
  MOE_CHECK(status.code() == absl::StatusCode::kInternal);
  for (const float value : out) MOE_CHECK(value == kUntouched);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const grpc::ByteBuffer bytes = moe::InPieces(moe::TextOf(data + 1, size - 1));
  if (data[0] % 2 == 0) {
    AskShard(bytes);
  } else {
    RespondToFront(bytes);
  }
  return 0;
}
