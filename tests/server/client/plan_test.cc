#include "server/client/plan.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/client/connection.h"
#include "server/client/http_get.h"
#include "server/placement/placement.h"
#include "server/server.h"
#include "tests/testing/program.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(UrlEncodeTest, EncodesAllButUnreservedCharacters) {
  EXPECT_EQ(UrlEncode("aZ0-_.~"), "aZ0-_.~");
  EXPECT_EQ(UrlEncode("a{b=\"c\"}[5m] /\xff"),
            "a%7Bb%3D%22c%22%7D%5B5m%5D%20%2F%FF");
}

TEST(ExpertLoadsTest, ReadsAPage) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const auto loads,
      LoadsOfPage(MetricsPage::Parse(
          "moe_expert_tokens_total{model=\"m\",layer=\"10\",expert=\"1\"} 5\n"
          "moe_expert_tokens_total{model=\"m\",layer=\"2\",expert=\"0\"} 7\n"
          "moe_expert_tokens_total{model=\"m\",layer=\"2\",expert=\"2\"} 1\n"
          "moe_expert_tokens_total{model=\"a\",layer=\"3\",expert=\"0\"} 4\n"
          "moe_tokens_total 17\n")));
  EXPECT_THAT(
      loads,
      ElementsAre(LayerLoads{.model = "a", .layer = 3, .tokens = {4}},
                  LayerLoads{.model = "m", .layer = 2, .tokens = {7, 0, 1}},
                  LayerLoads{.model = "m", .layer = 10, .tokens = {0, 5}}));
}

TEST(ExpertLoadsTest, SaysWhatIsWrongWithAPage) {
  EXPECT_THAT(LoadsOfPage(MetricsPage::Parse("moe_tokens_total 17\n")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--expert_metrics=full")));
  for (const char* labels :
       {"model=\"m\",layer=\"1\"", "model=\"m\",layer=\"x\",expert=\"1\"",
        "model=\"m\",layer=\"1\",expert=\"-1\"",
        "model=\"m\",layer=\"1\",expert=\"100001\""}) {
    EXPECT_THAT(LoadsOfPage(MetricsPage::Parse(
                    absl::StrCat("moe_expert_tokens_total{", labels, "} 1"))),
                StatusIs(kInvalid, HasSubstr("want a number up to")));
  }
  for (const char* value : {"-1", "NaN", "+Inf"}) {
    EXPECT_THAT(
        LoadsOfPage(MetricsPage::Parse(absl::StrCat(
            "moe_expert_tokens_total{layer=\"1\",expert=\"1\"} ", value))),
        StatusIs(kInvalid, HasSubstr("want 0 or more")));
  }
}

TEST(ExpertLoadsTest, ReadsAFile) {
  const TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(const auto loads,
                           LoadsOfFile(folder.Write("loads", R"({"layers": [
          {"model": "m", "layer": 2, "tokens": [1, 2.5]},
          {"model": "m", "layer": 1, "tokens": [3, 0]}]})")));
  EXPECT_THAT(
      loads,
      ElementsAre(LayerLoads{.model = "m", .layer = 1, .tokens = {3, 0}},
                  LayerLoads{.model = "m", .layer = 2, .tokens = {1, 2.5}}));
}

TEST(ExpertLoadsTest, SaysWhatIsWrongWithAFile) {
  const TempFolder folder;
  struct Row {
    const char* json;
    const char* message;
  };
  for (const Row& row : {
           Row{"", "--loads: want the JSON of a moe.v1.ExpertLoads"},
           Row{"{}", "--loads: layers: want one, got none"},
           Row{R"({"layers": [{"load": 1}]})", "load"},
           Row{R"({"layers": [{"model": "m"}]})",
               "layers[0].tokens: want one for each expert, got none"},
           Row{R"({"layers": [{"tokens": [1, -1]}]})",
               "layers[0].tokens: want 0 or more, got -1"},
           Row{R"({"layers": [{"tokens": ["NaN"]}]})",
               "layers[0].tokens: want 0 or more, got nan"},
           Row{R"({"layers": [{"tokens": [1]}, {"tokens": [2]}]})",
               "layers[1]: want each layer once, got layer 0 of \"\" twice"},
       }) {
    SCOPED_TRACE(row.json);
    EXPECT_THAT(LoadsOfFile(folder.Write("loads", row.json)),
                StatusIs(kInvalid, AllOf(HasSubstr("--loads: "),
                                         HasSubstr(row.message))));
  }
  EXPECT_THAT(
      LoadsOfFile(folder.File("none")),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("--loads: can't read")));
}

TEST(ExpertLoadsTest, SaysWhyPrometheusIsNotAsked) {
  for (const char* url : {"", "127.0.0.1:9090", "https://127.0.0.1:9090"}) {
    EXPECT_THAT(
        LoadsOfPrometheus(url, absl::Hours(1)),
        StatusIs(kInvalid, HasSubstr("--prometheus: want http://HOST:PORT")));
  }
  EXPECT_THAT(LoadsOfPrometheus("http://127.0.0.1", absl::Hours(1)),
              StatusIs(kInvalid, HasSubstr("--prometheus: want HOST:PORT")));
  for (const absl::Duration window :
       {absl::ZeroDuration(), absl::InfiniteDuration()}) {
    EXPECT_THAT(LoadsOfPrometheus("http://127.0.0.1:1", window),
                StatusIs(kInvalid, HasSubstr("--window: want 1s to a year")));
  }
  EXPECT_THAT(LoadsOfPrometheus("http://127.0.0.1:1/", absl::Hours(1)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("nothing answers at 127.0.0.1:1")));
}

std::vector<LayerLoads> TwoLayers() {
  return {{.model = "m", .layer = 1, .tokens = {8, 0, 0, 0}},
          {.model = "m", .layer = 2, .tokens = {1, 1, 1, 1}}};
}

TEST(MakePlanTest, SharesAHotExpertOut) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const Plan plan, MakePlan(TwoLayers(), {.num_shards = 2,
                                              .replicas = 2,
                                              .targets = {"dns:///s-{i}:1",
                                                          "unix:/s/{i}/{i}"}}));
  ASSERT_THAT(plan.layers, SizeIs(2));
  EXPECT_EQ(plan.layers[0].num_experts, 4);
  EXPECT_EQ(plan.layers[0].slots_per_shard, 3);
  EXPECT_EQ(plan.layers[0].tokens, 8);
  EXPECT_EQ(plan.layers[0].balancedness_before, 0.5);
  EXPECT_EQ(plan.layers[0].balancedness_after, 1);
  EXPECT_EQ(plan.layers[1].balancedness_before, 1);
  ASSERT_EQ(plan.placement.shards_size(), 2);
  const v1::Shard& shard = plan.placement.shards(1);
  EXPECT_EQ(shard.name(), "shard-1");
  EXPECT_THAT(shard.targets(), ElementsAre("dns:///s-1:1", "unix:/s/1/1"));
  ASSERT_EQ(shard.experts_size(), 2);
  EXPECT_EQ(shard.experts(0).model(), "m");
  EXPECT_EQ(shard.experts(0).layers(), "1");
}

TEST(MakePlanTest, HoldsNoExpertTwiceOnAShard) {
  for (const PlanOptions& options :
       {PlanOptions{.num_shards = 2, .slots_per_shard = 100},
        PlanOptions{.num_shards = 2, .replicas = 100}}) {
    MOE_ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(TwoLayers(), options));
    EXPECT_EQ(plan.layers[0].slots_per_shard, 4);
    EXPECT_EQ(plan.placement.shards(0).experts(0).experts(), "0-3");
  }
}

struct BadCase {
  const char* name;
  PlanOptions options;
  const char* message;
};

class MakePlanErrorTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(MakePlanErrorTest, NamesTheFlag) {
  EXPECT_THAT(MakePlan(TwoLayers(), GetParam().options),
              StatusIs(kInvalid, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Options, MakePlanErrorTest,
    ::testing::Values(
        BadCase{"NoShards", {.num_shards = 0}, "--num_shards: want 1 to 4096"},
        BadCase{"Slots",
                {.num_shards = 1, .slots_per_shard = -1},
                "--slots_per_shard: want 0"},
        BadCase{"Replicas",
                {.num_shards = 1, .replicas = -1},
                "--replicas: want 0 to"},
        BadCase{"SlotsAndReplicas",
                {.num_shards = 1, .slots_per_shard = 5, .replicas = 1},
                "--slots_per_shard: want it or --replicas, got both"},
        BadCase{"TooFewSlots",
                {.num_shards = 2, .slots_per_shard = 1},
                "layer 1 of \"m\": slots: want at least 4, one for each "
                "expert; got 2 shards with 1 each"},
        BadCase{"Nodes",
                {.num_shards = 3, .num_nodes = 2},
                "--nodes: want a divisor of --num_shards=3, got 2"},
        BadCase{"NoNodes",
                {.num_shards = 1, .num_nodes = 0},
                "--nodes: want a divisor"},
        BadCase{"Groups",
                {.num_shards = 2, .num_nodes = 2, .num_groups = 3},
                "--groups: want a multiple of --nodes=2, got 3"},
        BadCase{"GroupsOfExperts",
                {.num_shards = 1, .num_groups = 3},
                "layer 1 of \"m\": experts: want a multiple of the 3 groups, "
                "got 4"},
        BadCase{"Targets",
                {.num_shards = 2, .targets = {"dns:///one:1"}},
                "--targets: want {i} in the place of a shard's number, got "
                "\"dns:///one:1\""}),
    [](const auto& row) { return row.param.name; });

TEST(PrintAndWritePlanTest, WantsTargetsThatGrpcKnows) {
  const TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(Plan plan, MakePlan(TwoLayers(), {.num_shards = 1}));
  EXPECT_THAT(
      PrintAndWritePlan(plan, folder.File("out")),
      StatusIs(kInvalid, HasSubstr("--targets: want one with --output")));
  MOE_EXPECT_OK(PrintAndWritePlan(plan, ""));
  MOE_ASSERT_OK_AND_ASSIGN(
      plan, MakePlan(TwoLayers(), {.num_shards = 1, .targets = {"s:1"}}));
  EXPECT_THAT(PrintAndWritePlan(plan, folder.File("out")),
              StatusIs(kInvalid, AllOf(HasSubstr("--targets: "),
                                       HasSubstr("want a gRPC target"))));
  MOE_ASSERT_OK_AND_ASSIGN(
      plan, MakePlan(TwoLayers(), {.num_shards = 1, .targets = {"unix:s"}}));
  EXPECT_THAT(PrintAndWritePlan(plan, folder.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--output: can't write")));
}

// Sends `tokens` rows through a layer of the demo model, each to two experts of
// the caller's choice.
void Send(const std::string& address, int layer, int first, int second,
          int tokens) {
  const Connection connection(address);
  MOE_ASSERT_OK_AND_ASSIGN(const v1::ModelInfo model,
                           connection.GetModel("demo"));
  v1::ForwardRequest request;
  request.set_model("demo");
  request.set_layer(layer);
  v1::Tensor& states = *request.mutable_hidden_states();
  states.set_dtype(v1::F32);
  states.add_shape(tokens);
  states.add_shape(model.d_model());
  states.mutable_data()->assign(
      static_cast<size_t>(tokens * model.d_model()) * sizeof(float), '\0');
  v1::Tensor& ids = *request.mutable_expert_ids();
  ids.set_dtype(v1::I32);
  v1::Tensor& weights = *request.mutable_routing_weights();
  weights.set_dtype(v1::F32);
  for (v1::Tensor* tensor : {&ids, &weights}) {
    tensor->add_shape(tokens);
    tensor->add_shape(2);
  }
  const int32_t chosen[] = {first, second};
  const float halves[] = {0.5f, 0.5f};
  for (int i = 0; i < tokens; ++i) {
    ids.mutable_data()->append(reinterpret_cast<const char*>(chosen),
                               sizeof(chosen));
    weights.mutable_data()->append(reinterpret_cast<const char*>(halves),
                                   sizeof(halves));
  }
  MOE_ASSERT_OK(connection.Forward(request));
}

TEST(PlanTest, OfARealServerUnderASkewedLoadIsAPlacement) {
  ServerOptions options;
  options.demo = true;
  options.listen_address = "127.0.0.1:0";
  options.metrics_address = "127.0.0.1:0";
  options.num_compute_threads = 1;
  MOE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Server> server,
                           Server::Start(options));
  // Experts 2 and 3 of layer 0 are hot, and neighbours; layer 1 is even.
  Send(server->grpc_address(), 0, 2, 3, 100);
  for (int expert = 0; expert < 16; expert += 2) {
    Send(server->grpc_address(), 0, expert, expert + 1, 4);
    Send(server->grpc_address(), 1, expert, expert + 1, 4);
  }

  const TempFolder folder;
  const std::string file = folder.File("placement.json");
  Program client({MOE_CLIENT, "plan",
                  absl::StrCat("--metrics=", server->metrics_address()),
                  "--num_shards=4", "--replicas=4",
                  "--targets=dns:///shard-{i}.shards:50051",
                  absl::StrCat("--output=", file)});
  const std::string printed = client.ReadAll();
  EXPECT_EQ(client.Wait(), 0);
  // 264 tokens, of which the busiest of four shards has 2 * 104 + 2 * 4 before.
  EXPECT_THAT(printed, HasSubstr("demo layer 0: 16 experts, 5 on each of 4 "
                                 "shards; 264 tokens, balancedness 0.306 -> "));
  EXPECT_THAT(printed, HasSubstr("demo layer 1: 16 experts, 5 on each of 4 "
                                 "shards; 64 tokens, balancedness 1.000 -> "));

  MOE_ASSERT_OK_AND_ASSIGN(const Placement placement,
                           Placement::ReadFile(file));
  ASSERT_THAT(placement.shards(), SizeIs(4));
  EXPECT_THAT(placement.shards()[3].targets,
              ElementsAre("dns:///shard-3.shards:50051"));
  for (const int layer : {0, 1}) {
    MOE_EXPECT_OK(placement.CheckCover("demo", layer, 16, {}));
    for (int shard = 0; shard < 4; ++shard) {
      EXPECT_THAT(placement.ExpertsOf(shard, "demo", layer, 16), SizeIs(5));
    }
  }
  EXPECT_GT(placement.ShardsOf("demo", 0, 2).size(), 1);
  EXPECT_THAT(placement.ShardsOf("demo", 2, 0), IsEmpty());  // a dense layer
}

TEST(PlanTest, MistakesEndWithOneLine) {
  for (const std::vector<std::string>& flags : {
           std::vector<std::string>{"--loads=/nowhere", "--num_shards=2"},
           std::vector<std::string>{"--metrics=127.0.0.1:1"},
           std::vector<std::string>{"--loads=a", "--prometheus=b"},
       }) {
    std::vector<std::string> command = {MOE_CLIENT, "plan"};
    command.insert(command.end(), flags.begin(), flags.end());
    Program client(command);
    EXPECT_EQ(client.ReadAll(), "");
    EXPECT_EQ(client.Wait(), 2);
  }
}

}  // namespace
}  // namespace moe
