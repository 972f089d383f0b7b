// The commands of moe-client. Each prints its result to stdout.

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "moe/v1/moe.pb.h"
#include "server/client/connection.h"

namespace moe {

// Health, models, layers, limits.
absl::Status Info(const Connection& connection);

struct ForwardOptions {
  std::string model;
  int layer = 0;
  // A safetensors file with hidden_states [tokens, d_model] in F32, BF16 or
  // F16; empty: random hidden states.
  std::string input;
  int64_t random_tokens = 1;
  uint64_t seed = 1;
  v1::DType dtype = v1::F32;  // of random hidden states
  // Where to write output (and expert_ids, routing_weights) as safetensors;
  // empty: nowhere.
  std::string output;
};

// Sends one batch; prints shape, first values, experts chosen, and the time.
absl::Status Forward(const Connection& connection,
                     const ForwardOptions& options);

}  // namespace moe
