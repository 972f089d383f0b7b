// moe-inspect: what a checkpoint holds, without a server.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/common/flags.h"
#include "server/common/logging.h"
#include "server/common/standard_streams.h"
#include "server/inspect/report.h"

int main(int argc, char** argv) {
  const std::vector<std::string> folders = moe::ParseCommandLineOrExit(
      argc, argv,
      "moe-inspect says what a model's folder holds: which FFN layers, how "
      "they "
      "route,\nwhat they cost, and which tensors are left alone.\n\n"
      "  moe-inspect DIR",
      "moe_inspect.cc");
  if (folders.size() != 1) {
    moe::PrintError(
        absl::StrCat("want one folder, got ", folders.size(), "; see --help"));
    return 2;
  }
  const absl::StatusOr<std::string> report =
      moe::InspectReport(folders.front());
  if (!report.ok()) {
    moe::PrintError(report.status().message());
    return 2;
  }
  absl::PrintF("%s", *report);
  return moe::ExitCode(0);
}
