// Shows how far the loading of a model is: a bar on a terminal, a log line
// every few seconds elsewhere.
//
// Thread-safety: thread-compatible.

#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "router/models/model.h"

namespace moe {

// "12% 1.2 GB of 10.1 GB, 850 MB/s, 11s left".
std::string ProgressText(const LoadProgress& progress, absl::Duration elapsed);

class LoadProgressReporter {
 public:
  explicit LoadProgressReporter(absl::string_view model);

  void Report(const LoadProgress& progress);
  // Ends the bar, and says what was loaded.
  void Done(int64_t weights_bytes);

 private:
  const std::string model_;
  const bool terminal_;
  const absl::Time start_ = absl::Now();
  absl::Time last_shown_ = absl::InfinitePast();
};

}  // namespace moe
