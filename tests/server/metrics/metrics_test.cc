#include "server/metrics/metrics.h"

#include <map>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/check_names.h"
#include "tests/server/metrics/scrape.h"

namespace moe {
namespace {

using ::prometheus::ClientMetric;
using ::prometheus::MetricFamily;
using ::prometheus::MetricType;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

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

}  // namespace
}  // namespace moe
