// Descriptions for people: rules and experts in words, numbers with units.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "router/models/model_spec.h"

namespace moe {

// "the 8 largest of sigmoid(z) + bias in the 4 best of 8 groups; weight
// sigmoid(z), divided by the sum of the chosen, times 2.5". z are the router
// logits. Requires: a routed layer.
std::string RoutingInWords(const LayerSpec& layer);

// "gated, act(gate_proj x) * up_proj x with silu" and what else there is to it.
std::string ExpertInWords(const ExpertSpec& expert);

// "0-2, 5" for ascending numbers.
std::string RangesText(const std::vector<int>& numbers);
// "1,234,567".
std::string ThousandsText(int64_t number);
// "1.5 GiB", "12 bytes".
std::string BytesText(int64_t bytes);

}  // namespace moe
