#include "server/client/doctor.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

auto Finds(Verdict verdict, const std::string& topic, const std::string& text) {
  return AllOf(Field(&Finding::verdict, verdict), Field(&Finding::topic, topic),
               Field(&Finding::text, HasSubstr(text)));
}

TEST(MetricsPageTest, ReadsTheTextFormat) {
  const MetricsPage page = MetricsPage::Parse(
      "# HELP a Help.\n"
      "# TYPE a counter\n"
      "a 1\n"
      "b{x=\"1\",y=\"two \\\"2\\\", {three}\\n\\\\\"} 2.5e3 1700000000\r\n"
      "b{x=\"2\"} +Inf\n"
      "\n"
      "broken{x=\"1\n"
      "broken{x} 1\n"
      "broken\n"
      "broken \n"
      "b{x=\"1\"} 0.5");
  EXPECT_EQ(page.Sum("a"), 1);
  EXPECT_THAT(page.All("b"), SizeIs(3));
  EXPECT_EQ(page.Sum("b", {{"x", "1"}}), 2500.5);
  EXPECT_EQ(page.All("b")[0].labels.at("y"), "two \"2\", {three}\n\\");
  EXPECT_THAT(page.All("broken"), IsEmpty());
  EXPECT_EQ(page.Sum("broken"), std::nullopt);
  EXPECT_EQ(page.Sum("a", {{"x", "1"}}), std::nullopt);
}

TEST(MetricsPageTest, SaysWhyAPageCannotBeHad) {
  for (const char* address : {"", "host", "host:", "host:x", "host:0"}) {
    EXPECT_THAT(MetricsPage::Fetch(address, ""),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("--metrics: want HOST:PORT")));
  }
  EXPECT_THAT(MetricsPage::Fetch("127.0.0.1:1", ""),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("nothing answers at 127.0.0.1:1")));
}

// A page of a server in good order.
std::string GoodPage() {
  return "moe_build_info{version=\"1\",commit=\"c\",isa=\"AVX3\"} 1\n"
         "moe_compute_threads 4\n"
         "moe_cgroup_quota_cpus 4\n"
         "process_resident_memory_bytes 5e9\n"
         "moe_memory_limit_bytes 1e10\n"
         "moe_huge_pages_bytes 3.9e9\n"
         "moe_model_weights_bytes{model=\"m\",weight_format=\"int8\"} 4e9\n"
         "process_open_fds 20\n"
         "process_max_fds 1000\n"
         "moe_machine_read_bytes_per_second 2e10\n"
         "moe_machine_flops_per_second 1.9e11\n"
         "moe_expert_seconds_total{model=\"m\"} 100\n"
         "moe_expert_roofline_seconds_total{model=\"m\"} 82\n"
         "moe_requests_total{method=\"Forward\",code=\"OK\"} 1000\n"
         "moe_rejected_requests_total{reason=\"queue_full\"} 1\n"
         "moe_tls_certificate_expiry_timestamp_seconds 1702592000\n";
}

// Thirty days before the certificate of GoodPage expires.
absl::Time Now() { return absl::FromUnixSeconds(1'700'000'000); }

std::vector<Finding> FindingsOf(const std::string& page) {
  return DiagnoseMetrics(MetricsPage::Parse(page), Now());
}

TEST(DoctorTest, FindsAGoodServerFine) {
  const auto findings = FindingsOf(GoodPage());
  for (const Finding& finding : findings) {
    EXPECT_TRUE(finding.verdict == Verdict::kFine ||
                finding.verdict == Verdict::kNote)
        << finding.topic << ": " << finding.text;
  }
  EXPECT_THAT(findings,
              ElementsAre(Finds(Verdict::kFine, "kernels", "kernels for AVX3"),
                          Finds(Verdict::kFine, "threads", "4 compute threads"),
                          Finds(Verdict::kFine, "memory", "5 GB of 10 GB"),
                          Finds(Verdict::kFine, "huge pages", "3.9 GB"),
                          Finds(Verdict::kNote, "speed", "82 %"),
                          Finds(Verdict::kFine, "traffic", "1000 requests"),
                          Finds(Verdict::kFine, "certificate", "30 days")));
}

struct FaultCase {
  const char* name;
  const char* line;  // takes the place of the metric's line, or is added
  Verdict verdict;
  const char* topic;
  const char* text;
};

class DoctorFaultTest : public ::testing::TestWithParam<FaultCase> {};

TEST_P(DoctorFaultTest, IsNamedWithWhatToDo) {
  const FaultCase& fault = GetParam();
  const std::string line = fault.line;
  const std::string metric = line.substr(0, line.find_first_of("{ "));
  std::string page;
  for (const std::string& one :
       std::vector<std::string>(absl::StrSplit(GoodPage(), '\n'))) {
    if (one.rfind(metric, 0) != 0) absl::StrAppend(&page, one, "\n");
  }
  EXPECT_THAT(FindingsOf(absl::StrCat(page, line, "\n")),
              Contains(Finds(fault.verdict, fault.topic, fault.text)));
}

INSTANTIATE_TEST_SUITE_P(
    All, DoctorFaultTest,
    ::testing::Values(
        FaultCase{"Portable",
                  "moe_build_info{version=\"1\",commit=\"c\",isa=\"SSE4\"} 1",
                  Verdict::kWarn, "kernels", "no AVX2"},
        FaultCase{"TooManyThreads", "moe_compute_threads 8", Verdict::kWarn,
                  "threads", "leave --num_compute_threads at 0"},
        FaultCase{"BrokenQuota", "moe_cgroup_quota_cpus 3.5", Verdict::kNote,
                  "threads", "whole number"},
        FaultCase{"NoQuota", "moe_cgroup_quota_cpus 0", Verdict::kFine,
                  "threads", "no CPU quota"},
        FaultCase{"LittleMemory", "process_resident_memory_bytes 9.5e9",
                  Verdict::kWarn, "memory", "raise the limit"},
        FaultCase{"SmallPages", "moe_huge_pages_bytes 0", Verdict::kWarn,
                  "huge pages", "transparent_hugepage/enabled"},
        FaultCase{"FewFiles", "process_open_fds 900", Verdict::kWarn, "files",
                  "LimitNOFILE"},
        FaultCase{"FullQueue",
                  "moe_rejected_requests_total{reason=\"queue_full\"} 100",
                  Verdict::kWarn, "traffic", "add servers"},
        FaultCase{"InternalErrors",
                  "moe_requests_total{method=\"Forward\",code=\"INTERNAL\"} 2",
                  Verdict::kWarn, "errors", "2 requests ended with INTERNAL"},
        FaultCase{"NotFinite", "moe_nonfinite_rows_total 3", Verdict::kWarn,
                  "input", "3 rows came with NaN"},
        FaultCase{"TooManyConnections", "moe_refused_connections_total 1",
                  Verdict::kWarn, "connections", "--max_connections"},
        FaultCase{"BadCertificateFiles",
                  "moe_tls_reloads_total{result=\"failed\"} 1", Verdict::kWarn,
                  "certificate", "the old ones"},
        FaultCase{"CertificateSoon",
                  "moe_tls_certificate_expiry_timestamp_seconds 1700259200",
                  Verdict::kWarn, "certificate", "expires in 3 days: renew it"},
        FaultCase{"CertificateOver",
                  "moe_tls_certificate_expiry_timestamp_seconds 1699999999",
                  Verdict::kWarn, "certificate", "has expired"},
        FaultCase{"Uneven",
                  "moe_expert_load_balancedness{model=\"m\",layer=\"3\"} 0.25",
                  Verdict::kNote, "balance",
                  "layer is 3 of m: its busiest expert has 4.0 times"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(DoctorTest, KnowsThePageOfAnotherProgram) {
  EXPECT_THAT(FindingsOf("go_goroutines 7\n"),
              ElementsAre(Finds(Verdict::kWarn, "metrics", "not one of")));
}

TEST(DoctorTest, SaysWhereNothingListens) {
  const auto findings = Diagnose(
      {.connection = {.address = "127.0.0.1:1", .timeout = absl::Seconds(20)},
       .metrics_address = "127.0.0.1:1"});
  EXPECT_THAT(findings, ElementsAre(Finds(Verdict::kBad, "reachable",
                                          "127.0.0.1:1: nothing listens there"),
                                    Finds(Verdict::kWarn, "metrics",
                                          "--metrics=HOST:PORT")));
  EXPECT_FALSE(PrintFindings(findings));
}

class DoctorServerTest : public ::testing::Test {
 protected:
  static ServerOptions DemoOptions() {
    ServerOptions options;
    options.demo = true;
    options.listen_address = "127.0.0.1:0";
    options.metrics_address = "127.0.0.1:0";
    options.num_compute_threads = 1;
    return options;
  }
  void Start(const ServerOptions& options) {
    MOE_ASSERT_OK_AND_ASSIGN(server_, Server::Start(options));
  }
  std::vector<Finding> Ask(ConnectionOptions connection = {}) const {
    connection.address = server_->grpc_address();
    connection.timeout = absl::Seconds(20);
    return Diagnose({.connection = connection,
                     .metrics_address = server_->metrics_address()});
  }

  const TempFolder folder_;
  std::unique_ptr<Server> server_;
};

TEST_F(DoctorServerTest, FindsARealServerFine) {
  Start(DemoOptions());
  const auto findings = Ask();
  for (const char* topic :
       {"reachable", "TLS", "health", "model", "forward", "kernels", "threads",
        "memory", "huge pages", "traffic"}) {
    EXPECT_THAT(findings, Contains(Field(&Finding::topic, topic)));
  }
  EXPECT_THAT(findings, Contains(Finds(Verdict::kNote, "messages",
                                       "8192 tokens of float32")));
  EXPECT_THAT(findings, Contains(Finds(Verdict::kNote, "speed", "GFLOP/s")));
  EXPECT_THAT(findings, Not(Contains(Field(&Finding::verdict, Verdict::kBad))));
  EXPECT_TRUE(PrintFindings(findings));
}

TEST_F(DoctorServerTest, AsksForTheToken) {
  ServerOptions options = DemoOptions();
  options.auth_token_file = folder_.Write("tokens", "secret\n");
  options.auth_metrics = true;
  Start(options);
  const auto without = Ask();
  EXPECT_THAT(without, Contains(Finds(Verdict::kBad, "token", "--token_file")));
  EXPECT_THAT(without, Contains(Finds(Verdict::kWarn, "metrics",
                                      "asks for a token: --token_file")));
  ConnectionOptions with_token;
  with_token.caller.token_file = folder_.Write("token", "secret\n");
  const auto with = Ask(with_token);
  EXPECT_TRUE(PrintFindings(with));
  EXPECT_THAT(with, Contains(Field(&Finding::topic, "kernels")));
}

}  // namespace
}  // namespace moe
