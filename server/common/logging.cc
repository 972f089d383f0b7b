#include "server/common/logging.h"

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "experts/base/no_destructor.h"
#include "server/common/line_writer.h"

namespace moe {
namespace {

// Long enough for a reader on a busy machine, short beside what process
// managers wait before they kill.
constexpr absl::Duration kFlushTimeout = absl::Seconds(2);

std::string Line(Severity severity, absl::string_view message) {
  return absl::StrCat(std::string(1, static_cast<char>(severity)),
                      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ ", absl::Now(),
                                       absl::UTCTimeZone()),
                      message, "\n");
}

std::string LostLines(int64_t lines) {
  return Line(Severity::kWarning,
              absl::StrCat("log: ", lines,
                           " lines lost here, stderr did not take them"));
}

// One per process, as stderr is.
const LineWriter& Writer() {
  static const NoDestructor<LineWriter> writer(
      LineWriterOptions{.fd = STDERR_FILENO, .lost = LostLines});
  return *writer;
}

}  // namespace

void Log(Severity severity, absl::string_view message) {
  Writer().Write(Line(severity, message));
}

void LogText(std::string text) { Writer().Write(std::move(text)); }

void PrintError(absl::string_view message) {
  LogText(absl::StrCat("error: ", message, "\n"));
  FlushLog();
}

void FlushLog() { Writer().Flush(kFlushTimeout); }

}  // namespace moe
