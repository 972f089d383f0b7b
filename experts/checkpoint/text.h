// How names and shapes from files appear in messages: always one line, never
// unbounded, whatever the file holds.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moe {

// "name" in quotes; control characters and broken UTF-8 escaped, long names
// cut.
std::string Quote(absl::string_view name);

// "[8, 64]"; a negative extent, where any is welcome, prints as "?"; long
// shapes are cut.
std::string ShapeText(absl::Span<const int64_t> shape);

// What follows the last '/', on one line: messages never show where a file
// lies.
std::string BaseName(absl::string_view path);

}  // namespace moe
