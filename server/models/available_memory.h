// How much memory this process may still take.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace moe {

// Bytes that can be allocated before the machine, or the process's cgroup, has
// to swap or kill: free memory and the page cache that can be dropped. None if
// the system does not say.
//
// root: where /proc and /sys are; "" but in tests.
std::optional<int64_t> AvailableMemory(const std::string& root = "");

}  // namespace moe
