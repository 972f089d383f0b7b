// How much metrics tell about experts.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

enum class ExpertMetrics : uint8_t {
  kAuto,   // kFull while all models together have at most kMaxExpertSeries
           // experts; kLayer for the models beyond
  kFull,   // of each expert: tokens; and kLayer
  kLayer,  // of each layer: tokens, time, how evenly its experts are loaded
  kOff,    // of each model only
};
// A Prometheus server likes up to about ten thousand series of one target.
inline constexpr int64_t kMaxExpertSeries = 10'000;

// "auto", "full", "layer", "off".
absl::string_view ExpertMetricsName(ExpertMetrics detail);

// By the same names. Errors: INVALID_ARGUMENT naming what there is.
absl::StatusOr<ExpertMetrics> ParseExpertMetrics(absl::string_view name);

}  // namespace moe
