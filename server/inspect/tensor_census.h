// Which tensors of a checkpoint the FFN layers are made of, and why the others
// are left alone.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "experts/checkpoint/checkpoint.h"
#include "router/models/model_spec.h"

namespace moe {

// Tensors that are left alone for one reason.
struct SkippedTensors {
  std::string reason;
  int64_t count = 0;
  int64_t bytes = 0;
  // Their names with "#" for numbers, each once, in order.
  std::vector<std::string> patterns;
};

struct TensorCensus {
  int64_t recognised = 0;
  int64_t recognised_bytes = 0;
  std::vector<SkippedTensors> skipped;
  // Learned parameters of what is skipped, prediction layers included.
  int64_t skipped_parameters = 0;
};

TensorCensus TakeCensus(const Checkpoint& checkpoint,
                        absl::Span<const ModelSpec> models);

}  // namespace moe
