#include "server/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/check_names.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::prometheus::ClientMetric;
using ::prometheus::MetricFamily;
using ::prometheus::MetricType;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using Labels = std::map<std::string, std::string>;

Labels LabelsOf(const ClientMetric& metric) {
  Labels labels;
  for (const auto& label : metric.label) labels[label.name] = label.value;
  return labels;
}

// Everything a scrape would show, by family and labels.
class Scrape {
 public:
  explicit Scrape(const Metrics& metrics) {
    for (MetricFamily& family : metrics.registry()->Collect()) {
      families_[family.name] = std::move(family);
    }
  }

  const std::map<std::string, MetricFamily>& families() const {
    return families_;
  }
  const std::vector<ClientMetric>& All(const std::string& name) const {
    static const std::vector<ClientMetric> none;
    const auto found = families_.find(name);
    return found == families_.end() ? none : found->second.metric;
  }
  const ClientMetric& Find(const std::string& name,
                           const Labels& labels = {}) const {
    for (const ClientMetric& metric : All(name)) {
      if (LabelsOf(metric) == labels) return metric;
    }
    ADD_FAILURE() << "no " << name << " with these labels";
    static const ClientMetric missing;
    return missing;
  }
  double Counter(const std::string& name, const Labels& labels = {}) const {
    return Find(name, labels).counter.value;
  }
  double Gauge(const std::string& name, const Labels& labels = {}) const {
    return Find(name, labels).gauge.value;
  }

 private:
  std::map<std::string, MetricFamily> families_;
};

// All that a server with a model has.
void FillAll(Metrics& metrics) {
  metrics.AddLayer("olmoe", 0, 4);
  metrics.SetModel("olmoe", 1000, 2.5);
  metrics.SetThreads(2, 1.5);
}

TEST(MetricsTest, NamesFollowTheRules) {
  Metrics metrics;
  FillAll(metrics);
  const Scrape scrape(metrics);
  EXPECT_THAT(scrape.families(), Not(IsEmpty()));
  const std::regex form("moe(_[a-z0-9]+)+");
  for (const auto& [name, family] : scrape.families()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(prometheus::CheckMetricName(name));
    EXPECT_TRUE(std::regex_match(name, form));
    EXPECT_EQ(absl::EndsWith(name, "_total"),
              family.type == MetricType::Counter);
    for (const char* unit :
         {"millis", "micros", "nanos", "_ms", "_us", "kilobytes", "minutes"}) {
      EXPECT_FALSE(absl::StrContains(name, unit));
    }
    for (const char* quantity : {"duration", "wait"}) {
      if (absl::StrContains(name, quantity)) {
        EXPECT_TRUE(absl::EndsWith(name, "_seconds"));
      }
    }
    EXPECT_TRUE(absl::EndsWith(family.help, "."));
    EXPECT_THAT(family.metric, Not(IsEmpty()));
  }
}

TEST(MetricsTest, LabelsComeFromAClosedSetAndAreUnique) {
  Metrics metrics;
  FillAll(metrics);
  const std::set<std::string> known = {"method", "code",  "stage",  "reason",
                                       "model",  "layer", "expert", "version",
                                       "commit", "onednn"};
  const Scrape scrape(metrics);
  for (const auto& [name, family] : scrape.families()) {
    SCOPED_TRACE(name);
    std::set<Labels> seen;
    for (const ClientMetric& metric : family.metric) {
      EXPECT_TRUE(seen.insert(LabelsOf(metric)).second);
      for (const auto& label : metric.label) {
        EXPECT_TRUE(known.contains(label.name)) << label.name;
        EXPECT_NE(label.value, "");
      }
    }
  }
}

TEST(MetricsTest, EverythingIsThereAtZeroFromTheStart) {
  Metrics metrics;
  metrics.AddLayer("olmoe", 0, 4);
  const Scrape scrape(metrics);
  // Each method with each canonical code, 0 to 16.
  EXPECT_THAT(scrape.All("moe_requests_total"), SizeIs(kNumMethods * 17));
  EXPECT_THAT(scrape.All("moe_request_duration_seconds"), SizeIs(kNumMethods));
  EXPECT_THAT(scrape.All("moe_stage_duration_seconds"), SizeIs(kNumStages + 2));
  EXPECT_THAT(scrape.All("moe_rejected_requests_total"),
              SizeIs(kNumRejections));
  EXPECT_THAT(scrape.All("moe_expert_tokens_total"), SizeIs(4));
  for (const char* name :
       {"moe_requests_in_flight", "moe_batch_tokens", "moe_batch_requests",
        "moe_tokens_total", "moe_nonfinite_rows_total", "moe_queue_tokens",
        "moe_queue_wait_seconds", "moe_build_info"}) {
    EXPECT_THAT(scrape.All(name), SizeIs(1)) << name;
  }
  for (const auto& [name, family] : scrape.families()) {
    if (name == "moe_build_info") continue;
    for (const ClientMetric& metric : family.metric) {
      EXPECT_EQ(metric.counter.value, 0) << name;
      EXPECT_EQ(metric.gauge.value, 0) << name;
      EXPECT_EQ(metric.histogram.sample_count, 0) << name;
    }
  }
}

TEST(MetricsTest, RequestsAreCountedByMethodAndCode) {
  Metrics metrics;
  metrics.RequestStarted();
  metrics.RequestStarted();
  metrics.RequestStarted();
  EXPECT_EQ(Scrape(metrics).Gauge("moe_requests_in_flight"), 3);
  metrics.RequestDone(Method::kForward, absl::StatusCode::kOk, 0.25);
  metrics.RequestDone(Method::kForward, absl::StatusCode::kInvalidArgument,
                      0.5);
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Gauge("moe_requests_in_flight"), 1);
  double sum = 0;
  for (const auto& metric : scrape.All("moe_requests_total")) {
    sum += metric.counter.value;
  }
  EXPECT_EQ(sum, 2);
  EXPECT_EQ(scrape.Counter("moe_requests_total",
                           {{"method", "Forward"}, {"code", "OK"}}),
            1);
  EXPECT_EQ(
      scrape.Counter("moe_requests_total",
                     {{"method", "Forward"}, {"code", "INVALID_ARGUMENT"}}),
      1);
  const auto& duration =
      scrape.Find("moe_request_duration_seconds", {{"method", "Forward"}})
          .histogram;
  EXPECT_EQ(duration.sample_count, 2);
  EXPECT_EQ(duration.sample_sum, 0.75);
}

TEST(MetricsTest, CodesOutsideTheCanonicalOnesCountAsUnknown) {
  Metrics metrics;
  metrics.RequestDone(Method::kGetModel, static_cast<absl::StatusCode>(99), 0);
  metrics.RequestDone(Method::kGetModel, static_cast<absl::StatusCode>(-1), 0);
  EXPECT_EQ(
      Scrape(metrics).Counter("moe_requests_total",
                              {{"method", "GetModel"}, {"code", "UNKNOWN"}}),
      2);
}

TEST(MetricsTest, RejectionsAreCountedByReason) {
  Metrics metrics;
  metrics.Rejected(Rejection::kQueueFull);
  metrics.Rejected(Rejection::kDraining);
  metrics.Rejected(Rejection::kExpired);
  metrics.Rejected(Rejection::kExpired);
  metrics.Rejected(Rejection::kCancelled);
  const Scrape scrape(metrics);
  const auto count = [&](const char* reason) {
    return scrape.Counter("moe_rejected_requests_total", {{"reason", reason}});
  };
  EXPECT_EQ(count("queue_full"), 1);
  EXPECT_EQ(count("draining"), 1);
  EXPECT_EQ(count("expired"), 2);
  EXPECT_EQ(count("cancelled"), 1);
}

TEST(MetricsTest, BatchesAreObservedStageByStage) {
  Metrics metrics;
  ForwardStats stats;
  stats.nonfinite_rows = 3;
  for (size_t stage = 0; stage < kNumStages; ++stage) {
    stats.stage_seconds[stage] = static_cast<double>(stage + 2);
  }
  metrics.BatchDone(stats, /*decode_seconds=*/1, /*encode_seconds=*/7,
                    /*tokens=*/48, /*requests=*/5);
  const Scrape scrape(metrics);
  double want = 1;
  for (const char* stage : {"decode", "gate", "top_k", "dispatch", "experts",
                            "combine", "encode"}) {
    const auto& histogram =
        scrape.Find("moe_stage_duration_seconds", {{"stage", stage}}).histogram;
    EXPECT_EQ(histogram.sample_count, 1) << stage;
    EXPECT_EQ(histogram.sample_sum, want) << stage;
    ++want;
  }
  EXPECT_EQ(scrape.Counter("moe_tokens_total"), 48);
  EXPECT_EQ(scrape.Counter("moe_nonfinite_rows_total"), 3);
  EXPECT_EQ(scrape.Find("moe_batch_tokens").histogram.sample_sum, 48);
  EXPECT_EQ(scrape.Find("moe_batch_requests").histogram.sample_sum, 5);
}

TEST(MetricsTest, QueueIsShown) {
  Metrics metrics;
  metrics.SetQueueTokens(100);
  metrics.SetQueueTokens(40);
  metrics.QueueWait(0.5);
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Gauge("moe_queue_tokens"), 40);
  EXPECT_EQ(scrape.Find("moe_queue_wait_seconds").histogram.sample_sum, 0.5);
}

TEST(MetricsTest, ExpertTokensAreExactPerModelLayerAndExpert) {
  Metrics metrics;
  double want = 0;
  // More than float32 could count one by one.
  double tokens = 1 << 25;
  for (const char* model : {"a", "b"}) {
    for (int layer = 0; layer < 3; ++layer) {
      for (auto* counter : metrics.AddLayer(model, layer, 5).expert_tokens) {
        counter->Increment(tokens);
        counter->Increment(1);
        want += tokens + 1;
        ++tokens;
      }
    }
  }
  const Scrape scrape(metrics);
  double sum = 0;
  for (const auto& metric : scrape.All("moe_expert_tokens_total")) {
    sum += metric.counter.value;
  }
  EXPECT_EQ(sum, want);
  // Model b, layer 2, expert 4 is the last of 30.
  EXPECT_EQ(scrape.Counter("moe_expert_tokens_total",
                           {{"model", "b"}, {"layer", "2"}, {"expert", "4"}}),
            tokens);
}

TEST(MetricsTest, LoadingAModelAgainKeepsItsCounters) {
  Metrics metrics;
  const LayerMetrics first = metrics.AddLayer("a", 0, 2);
  first.expert_tokens[1]->Increment(5);
  const LayerMetrics second = metrics.AddLayer("a", 0, 2);
  EXPECT_EQ(second.expert_tokens, first.expert_tokens);
  EXPECT_EQ(second.expert_tokens[1]->Value(), 5);
}

TEST(MetricsTest, ModelsThreadsAndBuildAreShown) {
  Metrics metrics;
  metrics.SetModel("a", 1000, 2.5);
  metrics.SetModel("b", 7, 0.5);
  metrics.SetModel("a", 2000, 1.5);
  metrics.SetThreads(3, 2.5);
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Gauge("moe_model_weights_bytes", {{"model", "a"}}), 2000);
  EXPECT_EQ(scrape.Gauge("moe_model_load_duration_seconds", {{"model", "a"}}),
            1.5);
  EXPECT_EQ(scrape.Gauge("moe_model_weights_bytes", {{"model", "b"}}), 7);
  EXPECT_EQ(scrape.Gauge("moe_compute_threads"), 3);
  EXPECT_EQ(scrape.Gauge("moe_cgroup_quota_cpus"), 2.5);
  ASSERT_THAT(scrape.All("moe_build_info"), SizeIs(1));
  const ClientMetric& build = scrape.All("moe_build_info")[0];
  EXPECT_EQ(build.gauge.value, 1);
  std::vector<std::string> names;
  for (const auto& label : build.label) names.push_back(label.name);
  EXPECT_THAT(names, UnorderedElementsAre("version", "commit", "onednn"));
}

TEST(MetricsTest, CountsFromSeveralThreads) {
  Metrics metrics;
  const LayerMetrics layer = metrics.AddLayer("a", 0, 1);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&metrics, &layer] {
        for (int i = 0; i < 1000; ++i) {
          metrics.RequestStarted();
          layer.expert_tokens[0]->Increment();
          metrics.RequestDone(Method::kRoute, absl::StatusCode::kOk, 0.001);
        }
      });
    }
  }
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Counter("moe_requests_total",
                           {{"method", "Route"}, {"code", "OK"}}),
            4000);
  EXPECT_EQ(scrape.Gauge("moe_requests_in_flight"), 0);
  EXPECT_EQ(layer.expert_tokens[0]->Value(), 4000);
}

TEST(CodeNameTest, IsTheCanonicalName) {
  EXPECT_EQ(CodeName(absl::StatusCode::kOk), "OK");
  EXPECT_EQ(CodeName(absl::StatusCode::kCancelled), "CANCELLED");
  EXPECT_EQ(CodeName(absl::StatusCode::kResourceExhausted),
            "RESOURCE_EXHAUSTED");
  EXPECT_EQ(CodeName(absl::StatusCode::kUnauthenticated), "UNAUTHENTICATED");
}

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
  std::string answer;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return answer;
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
