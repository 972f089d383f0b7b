// From the description of a set of experts to its tensors.
//
// Thread-safe: pure functions of a checkpoint.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/stored_expert.h"
#include "router/models/model_spec.h"

namespace moe {

// Whether the checkpoint holds the matrix `name` in any stored precision that
// OpenMatrix looks for, or refuses by name.
bool HasMatrix(const Checkpoint& checkpoint, absl::string_view name);

// Finds and checks every tensor of the set, whatever its layout. Reads the
// biases, but none of the weights. [num_experts]
//
// Errors: those of OpenMatrix and ReadVector.
absl::StatusOr<std::vector<StoredExpert>> OpenExperts(
    const Checkpoint& checkpoint, const ExpertSetSpec& set);
// The same for the experts `ids` alone; the others are left empty, and the
// files that they are in need not be there. [num_experts]
//
// Requires: 0 <= id < num_experts.
absl::StatusOr<std::vector<StoredExpert>> OpenExperts(
    const Checkpoint& checkpoint, const ExpertSetSpec& set,
    absl::Span<const int32_t> ids);

}  // namespace moe
