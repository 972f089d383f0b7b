// Conformance checkpoints that tests change before they load them, and what
// loaded models answer.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "experts/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/testing/tensors.h"

namespace moe {

// A checkpoint in parts.
struct Parts {
  nlohmann::json config;
  std::vector<TestTensor> tensors;

  TestTensor& Tensor(absl::string_view name);
  void Remove(absl::string_view name);
  // Replaces `from` by `to` in every name that has it.
  void Rename(absl::string_view from, absl::string_view to);
  // Writes it to a folder and opens it.
  TestCheckpoint Open() const { return TestCheckpoint(tensors, config.dump()); }
};

// The case `name` of tests/golden/data.
Parts GoldenParts(absl::string_view name);

// Loads every model of a checkpoint in float32 and runs a few tokens through
// every layer; all outputs, one after the other.
absl::StatusOr<std::vector<float>> Answers(const Checkpoint& checkpoint);

}  // namespace moe
