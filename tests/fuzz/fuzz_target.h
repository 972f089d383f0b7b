// What all fuzz targets share: the entry point, and a check on errors.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "experts/base/check.h"

// Runs one input; crashing is how it reports a bug.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace moe {

inline absl::string_view TextOf(const uint8_t* data, size_t size) {
  return absl::string_view(reinterpret_cast<const char*>(data), size);
}

// An error caused by bytes from outside blames them, not us; and its message is
// one line of printable text that starts with the file's name.
inline void CheckError(const absl::Status& status, absl::string_view file) {
  MOE_CHECK(status.code() != absl::StatusCode::kInternal);
  MOE_CHECK(status.code() != absl::StatusCode::kUnknown);
  const absl::string_view message = status.message();
  MOE_CHECK(absl::StartsWith(message, file));
  MOE_CHECK(message.size() <= 1024);
  MOE_CHECK(std::none_of(message.begin(), message.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  }));
}

}  // namespace moe
