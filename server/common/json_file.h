// Reports as JSON files.
//
// Thread-safe: functions without state.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace moe {

// Writes `value` to a file, as WriteOutputFile does, its members in the order
// that they have. Numbers that are none (NaN, Inf) are null.
//
// flag:   what names the file, for errors, as in "--json".
// Errors: those of WriteOutputFile.
absl::Status WriteJsonFile(absl::string_view flag, const std::string& path,
                           const nlohmann::ordered_json& value);

}  // namespace moe
