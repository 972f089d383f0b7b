// Messages on stderr: of the server's life, and a program's last words. Only
// server/ logs; libraries return Status.
//
// Thread-safe, and no function but FlushLog and PrintError waits for whoever
// reads stderr: one thread writes, and what it can't keep up with is lost and
// counted (line_writer.h).

#pragma once

#include <string>

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

// Text as it is, in its place among the lines: a bar on a terminal.
void LogText(std::string text);

// Writes "error: message\n", and waits as FlushLog does: what a program says
// before it ends.
void PrintError(absl::string_view message);

// Waits until what was logged is written, but not for a reader who does not
// read: two seconds at most. To be called before the process ends.
void FlushLog();

}  // namespace moe
