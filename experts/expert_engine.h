// What computes the experts of this process.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

enum class ExpertEngine : uint8_t {
  kSimd,    // LocalExpertShard: packed weights of any format, same bytes for a
            // token in any batch
  kOneDnn,  // OneDnnExpertShard: float32 weights, products of the library
};

// "simd", "onednn".
absl::string_view ExpertEngineName(ExpertEngine engine);

// By the same names. Errors: INVALID_ARGUMENT.
absl::StatusOr<ExpertEngine> ParseExpertEngine(absl::string_view name);

}  // namespace moe
