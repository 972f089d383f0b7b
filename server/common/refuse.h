// The Status of a value that can't be used.
//
// Thread-safe: a pure function.

#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace moe {

// INVALID_ARGUMENT with `parts` joined, as in
// Refuse("--layer: want 0 or more, got ", layer).
template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace moe
