// Files that a program writes because a flag names them.
//
// Thread-safe: a function of the file system.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moe {

// Writes `parts`, one after another, into what `path` names:
// * a file, or nothing yet: it appears complete or not at all. The bytes go
//   into a file beside it, are synced to the disk, and take its name; what was
//   there before keeps its permissions, and its contents until then.
// * a device, a pipe: the bytes go into it.
// Symbolic links are followed, and stay what they are.
//
// Errors: naming `flag`, path and the reason, with the code that fits what the
// operating system says (NOT_FOUND: no such folder, PERMISSION_DENIED,
// RESOURCE_EXHAUSTED: disk full, ...).
absl::Status WriteOutputFile(absl::string_view flag, const std::string& path,
                             absl::Span<const absl::string_view> parts);

}  // namespace moe
