// Early return on error, for functions that return absl::Status or
// absl::StatusOr.

#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define MOE_STATUS_CONCAT_INNER_(a, b) a##b
#define MOE_STATUS_CONCAT_(a, b) MOE_STATUS_CONCAT_INNER_(a, b)

// Returns from the enclosing function if `expr` is not OK.
#define MOE_RETURN_IF_ERROR(expr)                             \
  do {                                                        \
    if (absl::Status moe_status_ = (expr); !moe_status_.ok()) \
      return moe_status_;                                     \
  } while (false)

// `lhs` may declare a variable: MOE_ASSIGN_OR_RETURN(auto value, Compute());
#define MOE_ASSIGN_OR_RETURN(lhs, expr)                                        \
  MOE_ASSIGN_OR_RETURN_IMPL_(MOE_STATUS_CONCAT_(moe_statusor_, __LINE__), lhs, \
                             expr)
// NOLINTBEGIN(bugprone-macro-parentheses): names, not expressions
#define MOE_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  if (!tmp.ok()) return std::move(tmp).status();   \
  lhs = *std::move(tmp)
// NOLINTEND(bugprone-macro-parentheses)
