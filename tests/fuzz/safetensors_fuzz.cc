// The header of a safetensors file. The input is the file.

#include <cstdint>

#include "absl/types/span.h"
#include "experts/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = absl::MakeConstSpan(data, size);
  const auto header = moe::ParseSafetensorsHeader(file, "f");
  if (!header.ok()) {
    moe::CheckError(header.status(), "f: ");
    return 0;
  }
  // The tensors cover the end of the file, one after the other.
  const uint8_t* end = data + size;
  for (auto tensor = header->tensors.rbegin(); tensor != header->tensors.rend();
       ++tensor) {
    MOE_CHECK(tensor->bytes.data() + tensor->bytes.size() == end);
    end = tensor->bytes.data();
    MOE_CHECK(end >= data + 8);
    if (tensor->dtype) {
      MOE_CHECK(tensor->elements() * moe::DTypeBytes(*tensor->dtype) ==
                static_cast<int64_t>(tensor->bytes.size()));
    }
    MOE_CHECK(!tensor->TypeText().empty());
  }
  return 0;
}
