// What a request may ask for.

#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace moe {

struct ServiceLimits {
  int64_t max_message_bytes = 0;
  int64_t max_request_tokens = 0;
  // How long a response may take to be sent before its call is ended.
  absl::Duration send_timeout = absl::Minutes(2);
};

}  // namespace moe
