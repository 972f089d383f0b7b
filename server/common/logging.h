// Life-cycle messages on stderr. Only server/ logs; libraries return Status.
//
// Thread-safe: a message is one write.

#pragma once

#include "absl/strings/string_view.h"

namespace moe {

enum class Severity : char { kInfo = 'I', kWarning = 'W', kError = 'E' };

// Writes "I2026-01-31T12:00:00Z message\n".
void Log(Severity severity, absl::string_view message);

inline void LogInfo(absl::string_view message) {
  Log(Severity::kInfo, message);
}
inline void LogWarning(absl::string_view message) {
  Log(Severity::kWarning, message);
}

}  // namespace moe
