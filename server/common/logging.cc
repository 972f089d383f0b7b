#include "server/common/logging.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace moe {

void Log(Severity severity, absl::string_view message) {
  const std::string line =
      absl::StrCat(std::string(1, static_cast<char>(severity)),
                   absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ ", absl::Now(),
                                    absl::UTCTimeZone()),
                   message, "\n");
  // A full or closed stderr must not stop the server.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace moe
