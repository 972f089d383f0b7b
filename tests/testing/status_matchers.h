// GoogleTest matchers for absl::Status, with the names that newer Abseil
// releases give them.

#pragma once

#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "experts/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status) {
  return status.status();
}

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).ok();
}

// StatusIs(code, message_matcher): the code, and a matcher on the message.
MATCHER_P2(StatusIs, code, message_matcher, "") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(
             message_matcher, std::string(status.message()), result_listener);
}

}  // namespace moe

#define MOE_ASSERT_OK(expr) ASSERT_THAT((expr), ::moe::IsOk())
#define MOE_EXPECT_OK(expr) EXPECT_THAT((expr), ::moe::IsOk())
#define MOE_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  MOE_ASSERT_OK_AND_ASSIGN_IMPL_(           \
      MOE_STATUS_CONCAT_(moe_test_statusor_, __LINE__), lhs, expr)
#define MOE_ASSERT_OK_AND_ASSIGN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  ASSERT_THAT(tmp, ::moe::IsOk());                     \
  lhs = *std::move(tmp)
