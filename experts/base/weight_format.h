// How the weights of the projections lie in memory at run time.

#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

enum class WeightFormat : uint8_t {
  kAuto,  // the checkpoint's own precision, per matrix; never a property of
          // packed weights
  kF32,
  kBF16,
  kF16,
  kFp8,    // E4M3 codes, a scale per block
  kMxfp4,  // E2M1 codes, a power of two per 32
  kInt8,   // symmetric, a scale per group of at most 128
  kInt4,   // offset 8, a scale per group of 32
};

// All that packed weights can have.
inline constexpr std::array<WeightFormat, 7> kPackedFormats = {
    WeightFormat::kF32, WeightFormat::kBF16,  WeightFormat::kF16,
    WeightFormat::kFp8, WeightFormat::kMxfp4, WeightFormat::kInt8,
    WeightFormat::kInt4};

// "auto", "f32", ...
absl::string_view WeightFormatName(WeightFormat format);
// Errors: INVALID_ARGUMENT listing the formats there are.
absl::StatusOr<WeightFormat> ParseWeightFormat(absl::string_view name);

}  // namespace moe
