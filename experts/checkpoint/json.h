// Reading JSON that came from outside. Internal to this folder: no other header
// here shows the JSON library.
//
// Thread-safe: pure functions.

#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace moe {

// Objects, lists and everything in them. The largest published headers and
// indices have a million.
inline constexpr size_t kMaxJsonValues = 4'000'000;

// Parses `text`; `file` is the name that errors carry.
//
// Stricter than the library's own parser: a key that appears twice in an object
// is refused (readers disagree on which one counts), and so are nesting deeper
// than 64 and more than kMaxJsonValues values, since the values of a document
// take far more memory than its text.
//
// Errors: DATA_LOSS with the line and column.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         absl::string_view file);

}  // namespace moe
