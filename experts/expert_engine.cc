#include "experts/expert_engine.h"

#include "absl/strings/str_cat.h"

namespace moe {

absl::StatusOr<ExpertEngine> ParseExpertEngine(absl::string_view name) {
  if (name == "simd") return ExpertEngine::kSimd;
  if (name == "onednn") return ExpertEngine::kOneDnn;
  return absl::InvalidArgumentError(
      absl::StrCat("want simd or onednn, got \"", name, "\""));
}

}  // namespace moe
