// moe-client doctor: what is fine about a server and what is not, in words that
// say what to do.

#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/client/connection.h"
#include "server/client/metrics_page.h"

namespace moe {

enum class Verdict : uint8_t {
  kFine,
  kNote,  // worth knowing
  kWarn,  // works, but not as it should
  kBad,   // does not work
};

struct Finding {
  Verdict verdict = Verdict::kFine;
  std::string topic;
  std::string text;
};

struct DoctorOptions {
  ConnectionOptions connection;
  // HOST:PORT of the server's metrics; empty: port 9464 of the server's host.
  std::string metrics_address;
};

// Calls the server and reads its metrics; goes as far as it can. Takes at most
// a few times the timeout of a call.
std::vector<Finding> Diagnose(const DoctorOptions& options);

// What the metrics of a server say at `now`.
std::vector<Finding> DiagnoseMetrics(const MetricsPage& page, absl::Time now);

// Prints the findings, one a line; whether none of them is kBad.
bool PrintFindings(const std::vector<Finding>& findings);

}  // namespace moe
