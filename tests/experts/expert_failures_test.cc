#include "experts/expert_failures.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::ElementsAre;

TEST(ExpertFailuresTest, SaysWhyAnExpertHasNotBeenRun) {
  ExpertFailures failures;
  EXPECT_TRUE(failures.empty());
  MOE_EXPECT_OK(failures.StatusOf(3));
  failures.Add(3, absl::UnavailableError("three"));
  failures.Add(1, absl::DeadlineExceededError("one"));
  EXPECT_FALSE(failures.empty());
  EXPECT_THAT(failures.StatusOf(1),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "one"));
  EXPECT_THAT(failures.StatusOf(3),
              StatusIs(absl::StatusCode::kUnavailable, "three"));
  for (const int64_t ran : {0, 2, 4}) MOE_EXPECT_OK(failures.StatusOf(ran));
}

TEST(ExpertFailuresTest, ListsThemByExpert) {
  ExpertFailures failures;
  for (const int32_t expert : {5, 2, 9, 0, 7}) {
    failures.Add(expert, absl::UnavailableError("gone"));
  }
  std::vector<int32_t> experts;
  for (const auto& failure : failures) experts.push_back(failure.expert);
  EXPECT_THAT(experts, ElementsAre(0, 2, 5, 7, 9));
}

TEST(ExpertFailuresTest, ForgetsThemAll) {
  ExpertFailures failures;
  failures.Add(2, absl::UnavailableError("gone"));
  failures.Clear();
  EXPECT_TRUE(failures.empty());
  MOE_EXPECT_OK(failures.StatusOf(2));
}

}  // namespace
}  // namespace moe
