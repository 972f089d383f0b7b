// Files that flags name.
//
// Thread-safe: a function of the file system.

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

// A file as a whole.
// Errors: NOT_FOUND, INVALID_ARGUMENT (more than `max_bytes`), naming `flag`.
absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag,
                                          const std::string& path,
                                          size_t max_bytes = 1 << 20);

}  // namespace moe
