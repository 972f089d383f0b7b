// What moe-inspect says of a checkpoint.
//
// Thread-safe: a pure function of the files.

#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace moe {

// Many lines of text: family, routing rules, layers, parameters, memory per
// weight format, cost of a token, and the tensors that were recognised or
// skipped. Reads no weights; all of their tensors are found and checked.
//
// Errors: those of Checkpoint::Open, DescribeModels and OpenExperts.
absl::StatusOr<std::string> InspectReport(const std::string& folder);

}  // namespace moe
