#include "server/metrics/expert_metrics.h"

#include "absl/strings/str_cat.h"

namespace moe {

absl::string_view ExpertMetricsName(ExpertMetrics detail) {
  switch (detail) {
    case ExpertMetrics::kAuto:
      return "auto";
    case ExpertMetrics::kFull:
      return "full";
    case ExpertMetrics::kLayer:
      return "layer";
    case ExpertMetrics::kOff:
      return "off";
  }
  return "?";
}

absl::StatusOr<ExpertMetrics> ParseExpertMetrics(absl::string_view name) {
  for (const ExpertMetrics detail :
       {ExpertMetrics::kAuto, ExpertMetrics::kFull, ExpertMetrics::kLayer,
        ExpertMetrics::kOff}) {
    if (name == ExpertMetricsName(detail)) return detail;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("want auto, full, layer or off, got \"", name, "\""));
}

}  // namespace moe
