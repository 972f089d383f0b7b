#include "server/inspect/report.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/program.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string Golden(const char* name) {
  return absl::StrCat(MOE_GOLDEN_DIR, "/", name);
}

TEST(ReportTest, TellsWhatAModelIsMadeOf) {
  MOE_ASSERT_OK_AND_ASSIGN(const std::string report,
                           InspectReport(Golden("deepseek_v3_mixed-a")));
  EXPECT_THAT(
      report,
      AllOf(StartsWith("deepseek_v3: 2 FFN layers of 2, d_model 64\n"),
            HasSubstr("layers 0: dense\n"), HasSubstr("layers 1: routed\n"),
            HasSubstr("8 of d_ff 16, top_k 3\n"),
            HasSubstr("3,072 per expert: 3 matrices of 16 x 64"),
            HasSubstr("d_ff 4 x d_model = 256"), HasSubstr("bf16"),
            HasSubstr("skipped"), Not(HasSubstr("others"))));
}

TEST(ReportTest, LayersAlikeAreOneEntry) {
  MOE_ASSERT_OK_AND_ASSIGN(const std::string report,
                           InspectReport(Golden("mixtral-a")));
  EXPECT_THAT(report, HasSubstr("layers 0-1: routed\n"));
}

TEST(ReportTest, EncoderAndDecoderHaveAReportEach) {
  MOE_ASSERT_OK_AND_ASSIGN(const std::string report,
                           InspectReport(Golden("t5-a")));
  EXPECT_THAT(report, AllOf(HasSubstr("t5 encoder: 2 FFN layers of 2"),
                            HasSubstr("t5 decoder: 2 FFN layers of 2")));
}

TEST(ReportTest, ProgramPrintsItAndEndsWith0) {
  Program inspect({MOE_INSPECT, Golden("olmoe-a")});
  EXPECT_THAT(inspect.ReadAll(), StartsWith("olmoe: 1 FFN layers of 1"));
  EXPECT_EQ(inspect.Wait(), 0);
}

TEST(ReportTest, ProgramRefusesABadFolderWith2) {
  const TempFolder empty;
  Program inspect({MOE_INSPECT, empty.path()});
  EXPECT_THAT(inspect.ReadAll(), IsEmpty());
  EXPECT_EQ(inspect.Wait(), 2);
  EXPECT_THAT(InspectReport(empty.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
}

}  // namespace
}  // namespace moe
