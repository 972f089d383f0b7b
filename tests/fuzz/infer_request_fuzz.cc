// The wire: bytes of a ModelInferRequest, checked as the service checks them;
// what passes is decoded, and a response is encoded.

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/inference.pb.h"
#include "server/open_inference/infer_request.h"
#include "server/wire/infer_message.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/request_target.h"

namespace {

using Elements = inference::InferTensorContents;

std::string Copy(const moe::InferMessage::Data& data) {
  std::string bytes(data.size, '\0');
  data.bytes.CopyTo(bytes.data(), bytes.size());
  return bytes;
}

template <typename Repeated>
std::string BytesOf(const Repeated& elements) {
  std::string bytes(static_cast<size_t>(elements.size()) * 4, '\0');
  if (!elements.empty()) {
    std::memcpy(bytes.data(), elements.data(), bytes.size());
  }
  return bytes;
}

// Protobuf and the service read the same from the same bytes.
void CompareParsers(absl::string_view bytes, const grpc::ByteBuffer& buffer) {
  inference::ModelInferRequest want;
  moe::InferMessage got;
  if (!got.Parse(buffer).ok() ||
      !want.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return;
  }
  MOE_CHECK(got.num_raw() ==
            static_cast<size_t>(want.raw_input_contents_size()));
  for (int i = 0; i < want.raw_input_contents_size() &&
                  i < static_cast<int>(moe::InferMessage::kMaxRaw);
       ++i) {
    MOE_CHECK(Copy(got.Raw(static_cast<size_t>(i))) ==
              want.raw_input_contents(i));
  }
  want.clear_raw_input_contents();
  MOE_CHECK(got.head().inputs_size() == want.inputs_size());
  for (int i = 0; i < want.inputs_size(); ++i) {
    const Elements& contents = want.inputs(i).contents();
    const auto has = [&](int field, int count) {
      MOE_CHECK(got.ContentsOf(i).has(field) == (count > 0));
    };
    has(Elements::kBoolContentsFieldNumber, contents.bool_contents_size());
    has(Elements::kIntContentsFieldNumber, contents.int_contents_size());
    has(Elements::kInt64ContentsFieldNumber, contents.int64_contents_size());
    has(Elements::kUintContentsFieldNumber, contents.uint_contents_size());
    has(Elements::kUint64ContentsFieldNumber, contents.uint64_contents_size());
    has(Elements::kFp32ContentsFieldNumber, contents.fp32_contents_size());
    has(Elements::kFp64ContentsFieldNumber, contents.fp64_contents_size());
    has(Elements::kBytesContentsFieldNumber, contents.bytes_contents_size());
    MOE_CHECK(Copy(got.FloatsOf(i)) == BytesOf(contents.fp32_contents()));
    MOE_CHECK(Copy(got.IntsOf(i)) == BytesOf(contents.int_contents()));
    want.mutable_inputs(i)->clear_contents();
  }
  // Maps have no order; sizes do.
  MOE_CHECK(got.head().ByteSizeLong() == want.ByteSizeLong());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes = moe::TextOf(data, size);
  const grpc::ByteBuffer buffer = moe::InPieces(bytes);
  CompareParsers(bytes, buffer);
  inference::ModelInferResponse response;
  const auto id = moe::RespondOffline(&moe::ParseInfer, buffer, &response);
  MOE_CHECK(!id.has_value() || response.id() == *id);
  MOE_CHECK(response.outputs_size() == response.raw_output_contents_size());
  return 0;
}
