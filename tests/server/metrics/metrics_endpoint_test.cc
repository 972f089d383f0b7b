#include "server/metrics/metrics_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/metrics/scrape.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What http://127.0.0.1:port/path answers.
std::string HttpGet(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
      0);
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(write(fd, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string response;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
    response.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return response;
}

TEST(MetricsEndpointTest, ServesTheRegistryOnThePortItGot) {
  Metrics metrics;
  metrics.Rejected(Rejection::kQueueFull);
  MOE_ASSERT_OK_AND_ASSIGN(
      const auto endpoint,
      MetricsEndpoint::Start("127.0.0.1:0", metrics.registry()));
  const std::string& address = endpoint->address();
  int port = 0;
  ASSERT_TRUE(absl::StartsWith(address, "127.0.0.1:"));
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(10), &port));
  ASSERT_GT(port, 0);
  EXPECT_THAT(
      HttpGet(port, "/metrics"),
      AllOf(HasSubstr("200 OK"),
            HasSubstr("moe_rejected_requests_total{reason=\"queue_full\"} 1\n"),
            HasSubstr("# TYPE moe_requests_total counter\n")));
}

TEST(MetricsEndpointTest, TellsOfTheProcess) {
  Metrics metrics;
  MOE_ASSERT_OK_AND_ASSIGN(
      const auto endpoint,
      MetricsEndpoint::Start("127.0.0.1:0", metrics.registry()));
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(endpoint->address().substr(10), &port));
  EXPECT_THAT(HttpGet(port, "/metrics"),
              AllOf(HasSubstr("\n# TYPE process_cpu_seconds_total counter\n"),
                    HasSubstr("\nprocess_resident_memory_bytes "),
                    HasSubstr("\nprocess_open_fds "),
                    HasSubstr("\nprocess_start_time_seconds ")));
}

// The default keeps the page of the largest models small. How long a scrape
// takes is printed, not judged.
TEST(MetricsEndpointTest, ThePageOfTheLargestModelsIsSmall) {
  for (const ExpertMetrics detail :
       {ExpertMetrics::kAuto, ExpertMetrics::kFull}) {
    Metrics metrics(detail);
    std::vector<LayerCost> layers;
    for (int index = 3; index < 61; ++index)
      layers.push_back(Layer(index, 256));
    const ModelMetrics added = metrics.AddModel("deepseek-v3", layers);
    std::vector<int32_t> rows(256);
    for (size_t e = 0; e < rows.size(); ++e) rows[e] = 12'345 + 67 * e % 89;
    for (const auto& layer : added.layers) {
      layer->BatchDone(StatsOf(0.012345), 4096, Offsets(rows));
    }
    MOE_ASSERT_OK_AND_ASSIGN(
        const auto endpoint,
        MetricsEndpoint::Start("127.0.0.1:0", metrics.registry()));
    int port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(endpoint->address().substr(10), &port));
    absl::Duration best = absl::InfiniteDuration();
    size_t bytes = 0;
    for (int i = 0; i < 5; ++i) {
      const absl::Time start = absl::Now();
      bytes = HttpGet(port, "/metrics").size();
      best = std::min(best, absl::Now() - start);
    }
    std::cout << (detail == ExpertMetrics::kAuto ? "auto: " : "full: ") << bytes
              << " bytes in " << best << "\n";
    EXPECT_LT(bytes, 2'000'000);
    EXPECT_GT(bytes, 10'000);
  }
}

TEST(MetricsEndpointTest, RefusesAnAddressThatIsTakenOrNone) {
  Metrics metrics;
  MOE_ASSERT_OK_AND_ASSIGN(
      const auto endpoint,
      MetricsEndpoint::Start("127.0.0.1:0", metrics.registry()));
  for (const std::string& address :
       {endpoint->address(), std::string("no.such.host.invalid:0"),
        std::string("127.0.0.1:http"), std::string()}) {
    EXPECT_THAT(MetricsEndpoint::Start(address, metrics.registry()),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr(absl::StrCat(
                             "--metrics_address: can't listen on ", address))));
  }
}

}  // namespace
}  // namespace moe
