#include "server/models/load_progress.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/common/bytes_text.h"
#include "server/common/logging.h"

namespace moe {

std::string ProgressText(const LoadProgress& progress, absl::Duration elapsed) {
  const auto done = static_cast<double>(progress.done_bytes);
  const auto total =
      static_cast<double>(std::max<int64_t>(progress.total_bytes, 1));
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-3);
  const double rate = done / seconds;
  std::string text =
      absl::StrFormat("%.0f%% %s of %s, %s/s", 100 * done / total,
                      BytesText(done), BytesText(total), BytesText(rate));
  if (rate > 0) {
    absl::StrAppendFormat(&text, ", %.0fs left", (total - done) / rate);
  }
  return text;
}

LoadProgressReporter::LoadProgressReporter(absl::string_view model)
    : model_(model), terminal_(isatty(STDERR_FILENO) != 0) {}

void LoadProgressReporter::Report(const LoadProgress& progress) {
  const absl::Time now = absl::Now();
  const absl::Duration period =
      terminal_ ? absl::Milliseconds(100) : absl::Seconds(3);
  // The first line off a terminal comes after one period: small models load
  // without a word.
  if (last_shown_ == absl::InfinitePast() && !terminal_) last_shown_ = start_;
  if (now - last_shown_ < period) return;
  last_shown_ = now;
  const std::string text = ProgressText(progress, now - start_);
  if (!terminal_) {
    LogInfo(absl::StrCat("loading ", model_, ": ", text));
    return;
  }
  constexpr int64_t kWidth = 30;
  const int64_t filled =
      kWidth * progress.done_bytes / std::max<int64_t>(progress.total_bytes, 1);
  LogText(absl::StrFormat(
      "\r%s [%s%s] %s\033[K", model_,
      std::string(static_cast<size_t>(filled), '#'),
      std::string(static_cast<size_t>(kWidth - filled), '.'), text));
}

void LoadProgressReporter::Done(int64_t weights_bytes) {
  if (terminal_) LogText("\r\033[K");
  LogInfo(absl::StrFormat("loaded %s: %s of weights in %.2f s", model_,
                          BytesText(static_cast<double>(weights_bytes)),
                          absl::ToDoubleSeconds(absl::Now() - start_)));
}

}  // namespace moe
