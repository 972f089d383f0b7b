// How many tokens each expert got, from whoever counted them.
//
// Thread-safe: functions without state.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/client/metrics_page.h"

namespace moe {

// The loads of one routed layer.
struct LayerLoads {
  std::string model;
  int layer = 0;
  std::vector<double> tokens;  // [num_experts]

  friend bool operator==(const LayerLoads& a, const LayerLoads& b) {
    return a.model == b.model && a.layer == b.layer && a.tokens == b.tokens;
  }
};

// All of these return at least one layer, ordered by model and layer.

// Since the server began: moe_expert_tokens_total of its page.
// Errors: NOT_FOUND if the page has none of it; INVALID_ARGUMENT for labels
// that are no indices.
absl::StatusOr<std::vector<LayerLoads>> LoadsOfPage(const MetricsPage& page);

// Over the last `window`, of all servers that a Prometheus watches; of fronts
// and their shards, the fronts.
//
// url: "http://HOST:PORT" and, if it is not at the root, its path.
// Errors: INVALID_ARGUMENT naming --prometheus or --window; those of HttpGet;
// NOT_FOUND if it knows no expert; INTERNAL for a response that is none.
absl::StatusOr<std::vector<LayerLoads>> LoadsOfPrometheus(
    absl::string_view url, absl::Duration window);

// The loads in a file, the JSON of a moe.v1.ExpertLoads.
// Errors: NOT_FOUND, INVALID_ARGUMENT naming --loads, field, wanted and got.
absl::StatusOr<std::vector<LayerLoads>> LoadsOfFile(const std::string& path);

}  // namespace moe
