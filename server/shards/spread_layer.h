// A layer whose experts are spread over a front and its shards, or over shards
// alone.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experts/base/expert_spec.h"

namespace moe {

// Plain values.
struct SpreadLayer {
  std::string model;
  int layer = 0;
  ExpertSpec expert;
  std::vector<uint64_t> fingerprints;  // [num_experts]
  std::vector<int32_t> local_ids;      // held by the front itself, ascending

  int num_experts() const { return static_cast<int>(fingerprints.size()); }
};

}  // namespace moe
