#include "server/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
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
#include "absl/time/clock.h"
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
    const auto found = families_.find(name);
    return found == families_.end() ? none_ : found->second.metric;
  }
  const ClientMetric& Find(const std::string& name,
                           const Labels& labels = {}) const {
    for (const ClientMetric& metric : All(name)) {
      if (LabelsOf(metric) == labels) return metric;
    }
    ADD_FAILURE() << "no " << name << " with these labels";
    return missing_;
  }
  double Counter(const std::string& name, const Labels& labels = {}) const {
    return Find(name, labels).counter.value;
  }
  double Gauge(const std::string& name, const Labels& labels = {}) const {
    return Find(name, labels).gauge.value;
  }

 private:
  const std::vector<ClientMetric> none_;
  const ClientMetric missing_;
  std::map<std::string, MetricFamily> families_;
};

LayerCost Layer(int index, int64_t num_experts) {
  return {.layer = index, .num_experts = num_experts};
}

// All that a server with a model and TLS has.
void FillAll(Metrics& metrics) {
  WeightsBytes weights;
  weights[WeightFormat::kInt8] = 1000;
  metrics.AddModel("olmoe", {Layer(0, 4)});
  metrics.ModelReady("olmoe", weights, 2.5);
  metrics.SetThreads(2, 1.5);
  metrics.SetTlsExpiry(absl::FromUnixSeconds(1));
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
  const std::set<std::string> known = {
      "method", "code",   "stage",        "reason", "model",
      "layer",  "expert", "version",      "commit", "onednn",
      "isa",    "result", "weight_format"};
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
  metrics.AddModel("olmoe", {Layer(0, 4)});
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
  EXPECT_THAT(scrape.All("moe_layer_tokens_total"), SizeIs(1));
  EXPECT_THAT(scrape.All("moe_expert_seconds_total"), SizeIs(1));
  for (const auto& [name, family] : scrape.families()) {
    if (name == "moe_build_info" || name == "moe_expert_load_balancedness") {
      continue;
    }
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
  metrics.RequestDone(Method::kForward, absl::StatusCode::kOk, 0.25, 0);
  metrics.RequestDone(Method::kForward, absl::StatusCode::kInvalidArgument, 0.5,
                      0);
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
  metrics.RequestDone(Method::kGetModel, static_cast<absl::StatusCode>(99), 0,
                      0);
  metrics.RequestDone(Method::kGetModel, static_cast<absl::StatusCode>(-1), 0,
                      0);
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

// Offsets of experts with these numbers of rows.
std::vector<int32_t> Offsets(const std::vector<int32_t>& rows) {
  std::vector<int32_t> offsets{0};
  for (const int32_t count : rows) offsets.push_back(offsets.back() + count);
  return offsets;
}

ForwardStats StatsOf(double experts_seconds) {
  ForwardStats stats;
  stats.stage_seconds[static_cast<size_t>(Stage::kExperts)] = experts_seconds;
  return stats;
}

TEST(MetricsTest, ExpertTokensAreExactPerModelLayerAndExpert) {
  Metrics metrics;
  double want = 0;
  for (const char* model : {"a", "b"}) {
    ModelMetrics added =
        metrics.AddModel(model, {Layer(0, 5), Layer(1, 5), Layer(2, 5)});
    for (const auto& layer : added.layers) {
      // Together more than float32 could count one by one.
      layer->BatchDone({}, 1, Offsets({0, 0, 0, 0, 1 << 30}));
      layer->BatchDone({}, 1, Offsets({3, 0, 0, 1, 1}));
      want += (1 << 30) + 5;
    }
  }
  const Scrape scrape(metrics);
  double sum = 0;
  for (const auto& metric : scrape.All("moe_expert_tokens_total")) {
    sum += metric.counter.value;
  }
  EXPECT_EQ(sum, want);
  EXPECT_EQ(scrape.Counter("moe_expert_tokens_total",
                           {{"model", "b"}, {"layer", "2"}, {"expert", "4"}}),
            (1 << 30) + 1);
}

TEST(MetricsTest, AModelThatComesAgainGoesOnCounting) {
  Metrics metrics;
  const std::vector<LayerCost> layers = {Layer(0, 2)};
  const ModelMetrics first = metrics.AddModel("a", layers);
  first.layers[0]->BatchDone({}, 5, Offsets({5, 0}));
  const ModelMetrics second = metrics.AddModel("a", layers);
  second.layers[0]->BatchDone({}, 2, Offsets({2, 0}));
  const Scrape scrape(metrics);
  EXPECT_THAT(scrape.All("moe_expert_tokens_total"), SizeIs(2));
  EXPECT_EQ(scrape.Counter("moe_expert_tokens_total",
                           {{"model", "a"}, {"layer", "0"}, {"expert", "0"}}),
            7);
}

TEST(MetricsTest, LayersCountTokensTimeAndHowEvenTheirExpertsAre) {
  Metrics metrics;
  const ModelMetrics added = metrics.AddModel("a", {Layer(3, 4), Layer(4, 0)});
  ForwardStats stats = StatsOf(0.5);
  stats.stage_seconds[0] = 0.25;
  const Labels routed = {{"model", "a"}, {"layer", "3"}};
  const auto balancedness = [&] {
    return Scrape(metrics).Gauge("moe_expert_load_balancedness", routed);
  };
  EXPECT_EQ(balancedness(), 1);
  added.layers[0]->BatchDone(stats, 4, Offsets({2, 2, 2, 2}));
  EXPECT_EQ(balancedness(), 1);
  added.layers[0]->BatchDone(stats, 4, Offsets({8, 0, 0, 0}));
  // Loads 10, 2, 2, 2; the older ones count for a little less.
  EXPECT_NEAR(balancedness(), 0.4, 1e-3);
  // After many even batches the uneven one is forgotten.
  for (int i = 0; i < 10; ++i) {
    added.layers[0]->BatchDone({}, 16'384, Offsets({9999, 9999, 9999, 9999}));
  }
  EXPECT_NEAR(balancedness(), 1, 1e-3);
  added.layers[1]->BatchDone(stats, 6, Offsets({6}));
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Counter("moe_layer_tokens_total", routed), 8 + 10 * 16'384);
  EXPECT_EQ(scrape.Counter("moe_layer_seconds_total", routed), 1.5);
  EXPECT_EQ(scrape.Counter("moe_layer_tokens_total",
                           {{"model", "a"}, {"layer", "4"}}),
            6);
  EXPECT_THAT(scrape.All("moe_expert_load_balancedness"), SizeIs(1))
      << "a dense layer has nothing to balance";
}

TEST(MetricsTest, BatchesAreHeldToTheRoofline) {
  Metrics metrics;
  metrics.SetMachine({.read_gb_per_s = 1, .peak_gflop_per_s = 10});
  const ModelMetrics added = metrics.AddModel("a", {{.layer = 0,
                                                     .num_experts = 3,
                                                     .expert_bytes = 2e9,
                                                     .expert_flops = 1e9,
                                                     .shared_bytes = 1e9,
                                                     .shared_flops = 3e9}});
  // Two experts and the shared one are read: 5 s. Operations: 4 + 6 rows, 1 s.
  added.layers[0]->BatchDone(StatsOf(8), 2, Offsets({3, 0, 1}));
  const Labels model = {{"model", "a"}};
  {
    const Scrape scrape(metrics);
    EXPECT_EQ(scrape.Counter("moe_expert_read_bytes_total", model), 5e9);
    EXPECT_EQ(scrape.Counter("moe_expert_flops_total", model), 10e9);
    EXPECT_EQ(scrape.Counter("moe_expert_seconds_total", model), 8);
    EXPECT_EQ(scrape.Counter("moe_expert_roofline_seconds_total", model), 5);
    EXPECT_EQ(scrape.Gauge("moe_machine_read_bytes_per_second"), 1e9);
    EXPECT_EQ(scrape.Gauge("moe_machine_flops_per_second"), 10e9);
  }
  // 100 rows of one expert: 3 s to read, 40 s to compute.
  added.layers[0]->BatchDone(StatsOf(50), 100, Offsets({100, 0, 0}));
  EXPECT_EQ(Scrape(metrics).Counter("moe_expert_roofline_seconds_total", model),
            5 + 40);
}

TEST(MetricsTest, DetailOfExpertsIsWhatWasAskedFor) {
  struct Case {
    ExpertMetrics asked;
    size_t expert_series;
    size_t layer_series;
  };
  for (const Case& c :
       {Case{ExpertMetrics::kAuto, 8, 2}, Case{ExpertMetrics::kFull, 8, 2},
        Case{ExpertMetrics::kLayer, 0, 2}, Case{ExpertMetrics::kOff, 0, 0}}) {
    SCOPED_TRACE(static_cast<int>(c.asked));
    Metrics metrics(c.asked);
    const ModelMetrics added =
        metrics.AddModel("a", {Layer(0, 4), Layer(1, 4)});
    EXPECT_EQ(added.detail,
              c.asked == ExpertMetrics::kAuto ? ExpertMetrics::kFull : c.asked);
    added.layers[0]->BatchDone(StatsOf(2), 1, Offsets({1, 0, 1, 0}));
    const Scrape scrape(metrics);
    EXPECT_THAT(scrape.All("moe_expert_tokens_total"), SizeIs(c.expert_series));
    EXPECT_THAT(scrape.All("moe_layer_tokens_total"), SizeIs(c.layer_series));
    EXPECT_THAT(scrape.All("moe_expert_load_balancedness"),
                SizeIs(c.layer_series));
    EXPECT_EQ(scrape.Counter("moe_expert_seconds_total", {{"model", "a"}}), 2);
  }
}

TEST(MetricsTest, AutoTellsLessOfWhatWouldBeTooMuch) {
  Metrics metrics;
  const std::vector<LayerCost> half(1, Layer(0, kMaxExpertSeries / 2));
  EXPECT_EQ(metrics.AddModel("a", half).detail, ExpertMetrics::kFull);
  EXPECT_EQ(metrics.AddModel("b", half).detail, ExpertMetrics::kFull);
  EXPECT_EQ(metrics.AddModel("c", {Layer(0, 1)}).detail, ExpertMetrics::kLayer);
  EXPECT_EQ(metrics.AddModel("a", half).detail, ExpertMetrics::kFull)
      << "the name keeps what it had";
}

TEST(MetricsTest, ModelsAreShown) {
  Metrics metrics;
  metrics.ModelAnnounced("a");
  metrics.ModelAnnounced("b");
  metrics.ModelAnnounced("c");
  metrics.ModelWithdrawn("c");
  WeightsBytes weights;
  weights[WeightFormat::kInt4] = 1000;
  weights[WeightFormat::kF32] = 10;
  metrics.ModelReady("a", weights, 2.5);
  {
    const Scrape scrape(metrics);
    EXPECT_EQ(scrape.Gauge("moe_model_ready", {{"model", "a"}}), 1);
    EXPECT_EQ(scrape.Gauge("moe_model_ready", {{"model", "b"}}), 0);
    EXPECT_THAT(scrape.All("moe_model_ready"), SizeIs(2));
    EXPECT_THAT(scrape.All("moe_model_weights_bytes"), SizeIs(2));
    EXPECT_EQ(scrape.Gauge("moe_model_weights_bytes",
                           {{"model", "a"}, {"weight_format", "int4"}}),
              1000);
    EXPECT_EQ(scrape.Gauge("moe_model_load_duration_seconds", {{"model", "a"}}),
              2.5);
  }
  weights[WeightFormat::kInt4] = 0;
  metrics.ModelReady("a", weights, 1.5);
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Gauge("moe_model_weights_bytes",
                         {{"model", "a"}, {"weight_format", "int4"}}),
            0)
      << "what is gone does not stay on the page";
  EXPECT_EQ(scrape.Gauge("moe_model_weights_bytes",
                         {{"model", "a"}, {"weight_format", "f32"}}),
            10);
}

TEST(MetricsTest, LimitsThreadsAndBuildAreShown) {
  Metrics metrics;
  metrics.SetThreads(3, 2.5);
  metrics.SetQueueLimits(100, 200);
  metrics.AddQueueBytes(70);
  metrics.AddQueueBytes(-20);
  metrics.SetMemoryLimit(1 << 30);
  metrics.SetHugePages(1 << 21);
  metrics.SetServing(true);
  metrics.SetTlsExpiry(absl::FromUnixSeconds(1'900'000'000));
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Gauge("moe_compute_threads"), 3);
  EXPECT_EQ(scrape.Gauge("moe_cgroup_quota_cpus"), 2.5);
  EXPECT_EQ(scrape.Gauge("moe_max_queue_tokens"), 100);
  EXPECT_EQ(scrape.Gauge("moe_max_queue_bytes"), 200);
  EXPECT_EQ(scrape.Gauge("moe_queue_bytes"), 50);
  EXPECT_EQ(scrape.Gauge("moe_memory_limit_bytes"), 1 << 30);
  EXPECT_EQ(scrape.Gauge("moe_huge_pages_bytes"), 1 << 21);
  EXPECT_EQ(scrape.Gauge("moe_serving"), 1);
  EXPECT_EQ(scrape.Gauge("moe_tls_certificate_expiry_timestamp_seconds"),
            1'900'000'000);
  ASSERT_THAT(scrape.All("moe_build_info"), SizeIs(1));
  const ClientMetric& build = scrape.All("moe_build_info")[0];
  EXPECT_EQ(build.gauge.value, 1);
  std::vector<std::string> names;
  for (const auto& label : build.label) names.push_back(label.name);
  EXPECT_THAT(names,
              UnorderedElementsAre("version", "commit", "onednn", "isa"));
}

TEST(MetricsTest, BytesAreCountedByMethod) {
  Metrics metrics;
  metrics.RequestStarted();
  metrics.Received(Method::kRoute, 100);
  metrics.RequestDone(Method::kRoute, absl::StatusCode::kOk, 0.1, 30);
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Counter("moe_received_bytes_total", {{"method", "Route"}}),
            100);
  EXPECT_EQ(scrape.Counter("moe_sent_bytes_total", {{"method", "Route"}}), 30);
  EXPECT_EQ(scrape.Counter("moe_sent_bytes_total", {{"method", "Forward"}}), 0);
}

TEST(MetricsTest, CountsFromSeveralThreads) {
  Metrics metrics;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&metrics] {
        for (int i = 0; i < 1000; ++i) {
          metrics.RequestStarted();
          metrics.AddQueueBytes(1);
          metrics.RequestDone(Method::kRoute, absl::StatusCode::kOk, 0.001, 1);
        }
      });
    }
  }
  const Scrape scrape(metrics);
  EXPECT_EQ(scrape.Counter("moe_requests_total",
                           {{"method", "Route"}, {"code", "OK"}}),
            4000);
  EXPECT_EQ(scrape.Gauge("moe_requests_in_flight"), 0);
  EXPECT_EQ(scrape.Gauge("moe_queue_bytes"), 4000);
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
