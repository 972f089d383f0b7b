// Every conformance case, mixtures and dense models alike, through the real
// programs: one moe-server that serves them all from their checkpoints, and
// moe-client verify on the recorded vectors.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/program.h"

namespace moe {
namespace {

std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const auto& entry :
       std::filesystem::directory_iterator(MOE_GOLDEN_DIR)) {
    if (entry.is_directory()) cases.push_back(entry.path().filename());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

std::string Binary(const char* name) {
  return absl::StrCat(MOE_BIN_DIR, "/", name);
}

TEST(GoldenTest, EveryCaseVerifiesOverTheWire) {
  const std::vector<std::string> cases = Cases();
  // Two sets of cases are copied here; a glance at the folder tells their
  // number.
  ASSERT_GE(cases.size(), 51U);
  Program server({Binary("moe-server"),
                  absl::StrCat("--model_repository=", MOE_GOLDEN_DIR),
                  "--listen_address=127.0.0.1:0",
                  "--metrics_address=127.0.0.1:0"});
  const std::string ready = server.ReadLine();
  absl::string_view address = ready;
  ASSERT_TRUE(absl::ConsumePrefix(&address, "READY grpc=")) << ready;
  address = address.substr(0, address.find(' '));

  std::string table;
  for (const std::string& name : cases) {
    SCOPED_TRACE(name);
    Program client({Binary("moe-client"), "verify",
                    absl::StrCat("--server=", address),
                    absl::StrCat("--model=", name),
                    absl::StrCat("--vectors=", MOE_GOLDEN_DIR, "/", name,
                                 "/vectors.safetensors")});
    const std::string output = client.ReadAll();
    EXPECT_EQ(client.Wait(), 0) << output;
    const std::vector<std::string> lines =
        absl::StrSplit(absl::StripSuffix(output, "\n"), '\n');
    EXPECT_THAT(lines.back(), ::testing::StartsWith("PASS: "));
    absl::StrAppendFormat(&table, "%-24s %s\n", name, lines.back());
  }
  std::printf("%s%d cases\n", table.c_str(), static_cast<int>(cases.size()));

  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

}  // namespace
}  // namespace moe
