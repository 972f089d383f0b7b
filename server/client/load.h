// moe-client load: how fast a server answers, under a load that the caller
// describes.

#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "moe/v1/moe.pb.h"
#include "server/client/connection.h"

namespace moe {

// How many tokens a request has.
class TokenDistribution {
 public:
  // "8": always 8. "1-16": uniform. "1:9,512:1": 1 nine times in ten, else 512;
  // the parts may be ranges.
  // Errors: INVALID_ARGUMENT naming --tokens.
  static absl::StatusOr<TokenDistribution> Parse(absl::string_view text);

  int64_t Draw(std::mt19937_64& random) const;
  int64_t max() const;

 private:
  struct Part {
    int64_t low;
    int64_t high;
    double weight;
  };
  std::vector<Part> parts_;
  double total_weight_ = 0;
};

struct LoadRunOptions {
  ConnectionOptions connection;
  std::string model = "demo";
  std::vector<int> layers;  // drawn from for each request; empty = all
  std::vector<v1::DType> dtypes = {v1::F32};  // likewise
  TokenDistribution tokens;
  // Closed loop: that many requests are in flight at any time.
  int concurrency = 8;
  // Open loop: requests begin at random times (a Poisson process) with this
  // mean rate per second, whether or not earlier ones have been answered, and
  // their latency counts from then. 0 = closed loop.
  double rate = 0;
  int connections = 4;
  // Over one ForwardStream per connection in place of single calls.
  bool stream = false;
  absl::Duration duration = absl::Seconds(10);
  // Before it, the same load without being measured.
  absl::Duration warmup = absl::Seconds(1);
  // Ends earlier, after that many measured requests; 0 = never.
  int64_t max_requests = 0;
  // Compares every response with the answers to its rows when each was sent
  // alone, before the load.
  bool check = false;
  // Allowed error of a value, relative to the largest of its row.
  double tolerance = 2e-5;
  uint64_t seed = 1;
  std::string json_file;  // empty = none
};

// Runs the load; shows progress on stderr and prints the result.
// Returns whether some request succeeded and, with `check`, all responses were
// right.
// Errors: INVALID_ARGUMENT naming the flag; those of the first calls.
absl::StatusOr<bool> RunLoadTest(const LoadRunOptions& options);

}  // namespace moe
