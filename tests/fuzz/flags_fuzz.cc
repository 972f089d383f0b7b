// Command lines: one argument per line of the input.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "server/client/load.h"
#include "server/common/flags.h"
#include "server/common/index_set.h"
#include "server/server_options.h"
#include "tests/fuzz/fuzz_target.h"

ABSL_FLAG(bool, fuzz_bool, false, "");
ABSL_FLAG(int, fuzz_int, 0, "");
ABSL_FLAG(double, fuzz_double, 0, "");
ABSL_FLAG(absl::Duration, fuzz_duration, absl::ZeroDuration(), "");
ABSL_FLAG(std::string, fuzz_string, "", "");
ABSL_FLAG(std::vector<std::string>, fuzz_list, {}, "");

namespace {

// A mistake is the user's, or a file that is not there.
template <typename T>
void Check(const absl::StatusOr<T>& value) {
  if (value.ok()) return;
  MOE_CHECK(absl::IsInvalidArgument(value.status()) ||
            absl::IsNotFound(value.status()));
  MOE_CHECK(!value.status().message().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> args = absl::StrSplit(moe::TextOf(data, size), '\n');
  for (const std::string& arg : args) {
    // The disk is not part of the input.
    if (absl::StrContains(arg, "flagfile")) return 0;
  }
  absl::SetFlag(&FLAGS_fuzz_list, {});
  Check(moe::ParseFlags(args));
  for (const std::string& arg : args) {
    const auto indices = moe::ParseIndexList("--layers", arg);
    Check(indices);
    if (indices.ok()) {
      for (size_t i = 1; i < indices->size(); ++i) {
        MOE_CHECK((*indices)[i - 1] < (*indices)[i]);
      }
    }
    Check(moe::ParseModelSource(arg));
    const auto tokens = moe::TokenDistribution::Parse(arg);
    Check(tokens);
    std::mt19937_64 random(1);
    if (tokens.ok()) MOE_CHECK(tokens->Draw(random) <= tokens->max());
    moe::ServerOptions options;
    options.demo = true;
    options.listen_address = arg;
    const absl::Status valid = options.Validate();
    MOE_CHECK(valid.ok() || absl::StartsWith(valid.message(), "--"));
  }
  return 0;
}
