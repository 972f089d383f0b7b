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
#include "tests/testing/temp_folder.h"

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

// moe-server with all cases as models.
class Server {
 public:
  explicit Server(const std::vector<std::string>& flags)
      : program_(Command(flags)) {
    const std::string ready = program_.ReadLine();
    absl::string_view address = ready;
    EXPECT_TRUE(absl::ConsumePrefix(&address, "READY grpc=")) << ready;
    address_ = std::string(address.substr(0, address.find(' ')));
  }
  const std::string& address() const { return address_; }
  void Stop() {
    program_.Signal(SIGTERM);
    EXPECT_EQ(program_.Wait(), 0);
  }

 private:
  static std::vector<std::string> Command(
      const std::vector<std::string>& flags) {
    std::vector<std::string> command = {
        Binary("moe-server"),
        absl::StrCat("--model_repository=", MOE_GOLDEN_DIR),
        "--listen_address=127.0.0.1:0", "--metrics_address=127.0.0.1:0"};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }

  Program program_;
  std::string address_;
};

void VerifyAll(const std::string& address) {
  const std::vector<std::string> cases = Cases();
  // Two sets of cases are copied here; a glance at the folder tells their
  // number.
  ASSERT_GE(cases.size(), 51U);
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
}

TEST(GoldenTest, EveryCaseVerifiesOverTheWire) {
  Server server({});
  VerifyAll(server.address());
  server.Stop();
}

TEST(GoldenTest, EveryCaseVerifiesThroughAFrontAndShards) {
  const TempFolder folder;
  // All experts on both shards: each batch divides them anew. Addresses are
  // known once the shards run, which do not ask for them.
  const auto placement = [&](const std::string& first,
                             const std::string& second) {
    return folder.Write("placement.json", absl::StrFormat(
                                              R"({"shards":[
                {"name":"a","targets":["ipv4:%s"],"experts":[{}]},
                {"name":"b","targets":["ipv4:%s"],"experts":[{}]}]})",
                                              first, second));
  };
  const std::string file = placement("127.0.0.1:1", "127.0.0.1:1");
  Server a({absl::StrCat("--shards=", file), "--shard_name=a"});
  Server b({absl::StrCat("--shards=", file), "--shard_name=b"});
  placement(a.address(), b.address());
  Server front({absl::StrCat("--shards=", file), "--experts=0,3-5,11"});
  VerifyAll(front.address());
  front.Stop();
  a.Stop();
  b.Stop();
}

}  // namespace
}  // namespace moe
