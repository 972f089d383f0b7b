#include "experts/expert_engine.h"

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

TEST(ExpertEngineTest, NamesAreParsedBack) {
  for (const ExpertEngine engine :
       {ExpertEngine::kSimd, ExpertEngine::kOneDnn}) {
    EXPECT_EQ(*ParseExpertEngine(ExpertEngineName(engine)), engine);
  }
}

TEST(ExpertEngineTest, ParsesTheNames) {
  EXPECT_EQ(*ParseExpertEngine("simd"), ExpertEngine::kSimd);
  EXPECT_EQ(*ParseExpertEngine("onednn"), ExpertEngine::kOneDnn);
  EXPECT_THAT(ParseExpertEngine("fast"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "want simd or onednn, got \"fast\""));
}

}  // namespace
}  // namespace moe
