#include "experts/expert_engine.h"

#include "absl/strings/str_cat.h"

namespace moe {

absl::string_view ExpertEngineName(ExpertEngine engine) {
  return engine == ExpertEngine::kOneDnn ? "onednn" : "simd";
}

absl::StatusOr<ExpertEngine> ParseExpertEngine(absl::string_view name) {
  for (const ExpertEngine engine :
       {ExpertEngine::kSimd, ExpertEngine::kOneDnn}) {
    if (name == ExpertEngineName(engine)) return engine;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("want simd or onednn, got \"", name, "\""));
}

}  // namespace moe
