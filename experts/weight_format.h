// How the weights of the projections lie in memory at run time.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

enum class WeightFormat : uint8_t {
  kAuto,  // the checkpoint's own precision, per matrix; never a property of
          // packed weights
  kF32,
};

// "auto", "f32", ...
absl::string_view WeightFormatName(WeightFormat format);
// Errors: INVALID_ARGUMENT listing the formats there are.
absl::StatusOr<WeightFormat> ParseWeightFormat(absl::string_view name);

}  // namespace moe
