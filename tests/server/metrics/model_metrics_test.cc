#include "server/metrics/model_metrics.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/metrics/scrape.h"

namespace moe {
namespace {

using ::testing::SizeIs;

TEST(ModelMetricsTest, ExpertTokensAreExactPerModelLayerAndExpert) {
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

TEST(ModelMetricsTest, AModelThatComesAgainGoesOnCounting) {
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

TEST(ModelMetricsTest, LayersCountTokensTimeAndHowEvenTheirExpertsAre) {
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

TEST(ModelMetricsTest, BatchesAreHeldToTheRoofline) {
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

TEST(ModelMetricsTest, DetailOfExpertsIsWhatWasAskedFor) {
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

TEST(ModelMetricsTest, AutoTellsLessOfWhatWouldBeTooMuch) {
  Metrics metrics;
  const std::vector<LayerCost> half(1, Layer(0, kMaxExpertSeries / 2));
  EXPECT_EQ(metrics.AddModel("a", half).detail, ExpertMetrics::kFull);
  EXPECT_EQ(metrics.AddModel("b", half).detail, ExpertMetrics::kFull);
  EXPECT_EQ(metrics.AddModel("c", {Layer(0, 1)}).detail, ExpertMetrics::kLayer);
  EXPECT_EQ(metrics.AddModel("a", half).detail, ExpertMetrics::kFull)
      << "the name keeps what it had";
}

TEST(ModelMetricsTest, ModelsAreShown) {
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

}  // namespace
}  // namespace moe
