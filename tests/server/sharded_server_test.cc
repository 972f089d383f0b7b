// A front and its shards, as their clients see them: whole servers in one
// process, with gRPC between them.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "experts/executor.h"
#include "experts/expert_workspace.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "inference/inference.grpc.pb.h"
#include "moe/shards/shards.grpc.pb.h"
#include "router/ffn_layer.h"
#include "router/models/model.h"
#include "server/client/connection.h"
#include "server/client/http_get.h"
#include "server/common/file_watcher.h"
#include "server/server.h"
#include "server/shards/shard_fleet.h"
#include "server/standard/health_service.h"
#include "server/wire/tensor_codec.h"
#include "tests/server/rpc/in_process.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kDModel = 256;  // of the demo model

ServerOptions Options() {
  ServerOptions options;
  options.demo = true;
  options.listen_address = "127.0.0.1:0";
  options.metrics_address = "";
  options.num_compute_threads = 1;
  options.measure_machine = false;
  return options;
}

v1::ForwardRequest Request(int layer, int64_t tokens, uint64_t seed) {
  v1::ForwardRequest request;
  request.set_model("demo");
  request.set_layer(layer);
  const auto x = RandomFloats(tokens * kDModel, 1.0F, seed);
  Encode(ConstMatrix(x.data(), tokens, kDModel), v1::F32,
         *request.mutable_hidden_states());
  return request;
}

class ShardedServerTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Server> Start(const ServerOptions& options) {
    auto server = Server::Start(options);
    EXPECT_THAT(server.status(), IsOk());
    return server.ok() ? *std::move(server) : nullptr;
  }
  static std::unique_ptr<Server> StartShard(const std::string& experts,
                                            ServerOptions options = Options()) {
    options.experts = *IndexSet::Parse("--experts", experts);
    return Start(options);
  }
  // A placement of shards "s0", "s1", ... with these experts, written to a
  // file.
  struct Placed {
    std::vector<std::string> targets;
    std::string experts;
  };
  std::string WritePlacement(const std::vector<Placed>& shards) {
    std::string text;
    for (size_t i = 0; i < shards.size(); ++i) {
      std::string targets;
      for (const std::string& target : shards[i].targets) {
        absl::StrAppend(&targets, targets.empty() ? "" : ",", "\"ipv4:", target,
                        "\"");
      }
      absl::StrAppend(
          &text, i == 0 ? "" : ",", R"({"name":"s)", i, R"(","targets":[)",
          targets, R"(],"experts":[{"experts":")", shards[i].experts, "\"}]}");
    }
    return folder_.Write("placement.json",
                         absl::StrCat("{\"shards\":[", text, "]}"));
  }
  ServerOptions FrontOptions(const std::vector<Placed>& shards) {
    ServerOptions options = Options();
    options.shards_file = WritePlacement(shards);
    return options;
  }

  static Connection Connect(const Server& server) {
    return Connection(server.grpc_address());
  }
  // The responses of a server that has all experts, and of another, in all
  // layers.
  static void ExpectSameBytes(const Server& whole, const Server& front) {
    const Connection want = Connect(whole);
    const Connection got = Connect(front);
    uint64_t seed = 1;
    for (const int64_t tokens : {0, 1, 2, 3, 7, 33, 200}) {
      for (int layer = 0; layer < 3; ++layer) {
        v1::ForwardRequest request = Request(layer, tokens, ++seed);
        request.set_return_routing(true);
        auto a = want.Forward(request);
        auto b = got.Forward(request);
        MOE_ASSERT_OK(a);
        MOE_ASSERT_OK(b);
        a->clear_timing();
        b->clear_timing();
        EXPECT_EQ(a->SerializeAsString(), b->SerializeAsString())
            << tokens << " tokens, layer " << layer;
      }
    }
  }
  static shards::ShardDescription DescriptionOfAGoodShard() {
    const auto good = StartShard("0-15");
    const auto stub = shards::ExpertShardService::NewStub(grpc::CreateChannel(
        good->grpc_address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    shards::ShardDescription description;
    EXPECT_TRUE(stub->DescribeShard(&context, shards::DescribeShardRequest(),
                                    &description)
                    .ok());
    return description;
  }
  // Waits until a call answers with a code.
  static absl::Status CallUntil(const Server& front, absl::StatusCode code) {
    absl::Status status;
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    do {
      status = Connect(front).Forward(Request(0, 64, 5)).status();
      if (status.code() == code) break;
      absl::SleepFor(absl::Milliseconds(5));
    } while (absl::Now() < give_up);
    return status;
  }

  TempFolder folder_;
};

TEST_F(ShardedServerTest, AnswersTheSameBytesAsOneServer) {
  const auto whole = Start(Options());
  const auto low = StartShard("0-6");
  const auto high = StartShard("7-15");
  const auto front = Start(FrontOptions(
      {{{low->grpc_address()}, "0-6"}, {{high->grpc_address()}, "7-15"}}));
  ExpectSameBytes(*whole, *front);
}

TEST_F(ShardedServerTest, RunsExpertsOfItsOwnBesideThoseOfShards) {
  const auto whole = Start(Options());
  const auto shard = StartShard("1,3,5-15");
  ServerOptions options = FrontOptions({{{shard->grpc_address()}, "1,3,5-15"}});
  options.experts = *IndexSet::Parse("--experts", "0,2,4");
  const auto front = Start(options);
  ExpectSameBytes(*whole, *front);
}

// One layer, as the front's engine has it, and a placement that changes
// meanwhile.
TEST_F(ShardedServerTest, SeveralThreadsMayRunBatchesThroughOneLayer) {
  const auto low = StartShard("0-9");
  const auto high = StartShard("4-12");
  Metrics metrics;
  FileWatcher watcher;
  MOE_ASSERT_OK_AND_ASSIGN(
      const auto fleet,
      ShardFleet::Open(
          {.placement_file = WritePlacement({{{low->grpc_address()}, "0-6"},
                                             {{high->grpc_address()}, "7-12"}}),
           .client = {}},
          &watcher, &metrics));
  Executor executor(2);
  MOE_ASSERT_OK_AND_ASSIGN(const auto whole, LoadDemoModel({}, executor));
  LoadOptions options;
  options.part.held_experts = [](const LayerSpec&) {
    return std::vector<int32_t>{13, 14, 15};
  };
  options.part.connect = [&](SpreadExperts experts) {
    return fleet->Connect("demo", std::move(experts));
  };
  MOE_ASSERT_OK_AND_ASSIGN(const auto front, LoadDemoModel(options, executor));
  MOE_ASSERT_OK(fleet->WaitUntilUp("demo"));

  const auto run = [](const Model& model, const std::vector<float>& x,
                      LayerWorkspace& workspace) {
    const auto tokens = static_cast<int64_t>(x.size()) / kDModel;
    std::vector<float> out(x.size());
    ForwardStats stats;
    MOE_EXPECT_OK(model.layers()[0].ffn->Forward(
        ConstMatrix(x.data(), tokens, kDModel), nullptr, workspace,
        Matrix(out.data(), tokens, kDModel), stats));
    EXPECT_TRUE(workspace.failures().empty());
    return out;
  };
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> want;
  ExpertWorkspace experts(&executor);
  LayerWorkspace alone(&experts);
  for (const int64_t tokens : {40, 3, 1}) {
    inputs.push_back(
        RandomFloats(tokens * kDModel, 1.0F, static_cast<uint32_t>(tokens)));
    want.push_back(run(*whole, inputs.back(), alone));
  }
  const auto before = fleet->shards();
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (size_t thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, thread] {
        ExpertWorkspace own_experts(&executor);
        LayerWorkspace own(&own_experts);
        // Some more once the placement has changed.
        for (size_t i = 0, more = 20; more > 0; ++i) {
          const size_t b = (thread + i) % inputs.size();
          if (run(*front, inputs[b], own) != want[b]) ++wrong;
          if (fleet->shards() != before || absl::Now() > give_up) --more;
        }
      });
    }
    WritePlacement(
        {{{low->grpc_address()}, "0-3"}, {{high->grpc_address()}, "4-12"}});
    watcher.Look();
  }
  EXPECT_NE(fleet->shards(), before);
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(ShardedServerTest, KeepsToQuantisedWeightsAlike) {
  ServerOptions quantised = Options();
  quantised.weight_format = WeightFormat::kInt8;
  const auto whole = Start(quantised);
  const auto shard = StartShard("0-15", quantised);
  ServerOptions options = FrontOptions({{{shard->grpc_address()}, "0-15"}});
  options.weight_format = WeightFormat::kInt8;
  const auto front = Start(options);
  ExpectSameBytes(*whole, *front);
}

TEST_F(ShardedServerTest, AnExpertMayBeOnSeveralShards) {
  const auto whole = Start(Options());
  const auto low = StartShard("0-9");
  const auto high = StartShard("6-15");
  const auto front = Start(FrontOptions(
      {{{low->grpc_address()}, "0-9"}, {{high->grpc_address()}, "6-15"}}));
  ExpectSameBytes(*whole, *front);
}

TEST_F(ShardedServerTest, AShardTakesItsExpertsFromThePlacement) {
  const auto whole = Start(Options());
  // The addresses are not known yet: the shards ask for names and experts only.
  const std::string file =
      WritePlacement({{{"127.0.0.1:1"}, "0-7"}, {{"127.0.0.1:1"}, "8-15"}});
  std::vector<Placed> placed;
  std::vector<std::unique_ptr<Server>> shards;
  for (const char* name : {"s0", "s1"}) {
    ServerOptions options = Options();
    options.shards_file = file;
    options.shard_name = name;
    shards.push_back(Start(options));
    placed.push_back(
        {{shards.back()->grpc_address()}, placed.empty() ? "0-7" : "8-15"});
  }
  const auto front = Start(FrontOptions(placed));
  ExpectSameBytes(*whole, *front);
}

TEST_F(ShardedServerTest, Bf16OnTheWireIsCloseAndHalfAsLarge) {
  const auto whole = Start(Options());
  const auto shard = StartShard("0-15");
  ServerOptions options = FrontOptions({{{shard->grpc_address()}, "0-15"}});
  options.shard_wire_dtype = v1::BF16;
  const auto front = Start(options);
  const v1::ForwardRequest request = Request(0, 16, 3);
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Connect(*whole).Forward(request));
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, Connect(*front).Forward(request));
  MOE_ASSERT_OK_AND_ASSIGN(const FloatMatrix a, ToFloats(want.output()));
  MOE_ASSERT_OK_AND_ASSIGN(const FloatMatrix b, ToFloats(got.output()));
  EXPECT_NE(a.values, b.values);
  for (size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_NEAR(a.values[i], b.values[i], 0.02) << i;
  }
}

TEST_F(ShardedServerTest, AShardRunsNoLayersAndSaysWhatItHolds) {
  const auto shard = StartShard("2-4");
  const Connection connection = Connect(*shard);
  EXPECT_THAT(connection.Forward(Request(0, 1, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("this server is a shard")));
  MOE_ASSERT_OK_AND_ASSIGN(const v1::ModelInfo info,
                           connection.GetModel("demo"));
  // No dense layer.
  ASSERT_EQ(info.layers_size(), 2);
  EXPECT_EQ(info.layers(0).num_experts(), 16);
  EXPECT_EQ(info.layers(0).held_experts(), 3);
  // Three experts in two layers, in float32.
  EXPECT_EQ(info.weights_bytes(), int64_t{2} * 3 * 3 * 256 * 128 * 4);
}

TEST_F(ShardedServerTest, AFrontRefusesAPlacementThatLeavesExpertsOut) {
  const auto shard = StartShard("0-14");
  EXPECT_THAT(Server::Start(FrontOptions({{{shard->grpc_address()}, "0-14"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("15")));
}

TEST_F(ShardedServerTest, AFrontRefusesAShardThatHoldsLess) {
  const auto shard = StartShard("0-14");
  EXPECT_THAT(Server::Start(FrontOptions({{{shard->grpc_address()}, "0-15"}})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("shard s0: model demo, layer 0: has no "
                                 "expert 15")));
}

TEST_F(ShardedServerTest, AFrontRefusesAShardWithAnotherWeightFormat) {
  ServerOptions quantised = Options();
  quantised.weight_format = WeightFormat::kInt8;
  const auto shard = StartShard("0-15", quantised);
  EXPECT_THAT(Server::Start(FrontOptions({{{shard->grpc_address()}, "0-15"}})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expert 0 is another one there")));
}

TEST_F(ShardedServerTest, AReplicaThatGoesIsNotMissed) {
  const auto whole = Start(Options());
  auto first = StartShard("0-15");
  const auto second = StartShard("0-15");
  const auto front = Start(FrontOptions(
      {{{first->grpc_address(), second->grpc_address()}, "0-15"}}));
  ExpectSameBytes(*whole, *front);
  first.reset();
  ExpectSameBytes(*whole, *front);
}

TEST_F(ShardedServerTest, RequestsThatDoNotNeedAMissingShardSucceed) {
  const auto low = StartShard("0-7");
  auto high = StartShard("8-15");
  const auto front = Start(FrontOptions(
      {{{low->grpc_address()}, "0-7"}, {{high->grpc_address()}, "8-15"}}));
  const Connection connection = Connect(*front);
  v1::ForwardRequest needs_low = Request(0, 1, 1);
  v1::ForwardRequest needs_high = needs_low;
  const float weight = 1.0F;
  Encode(ConstMatrix(&weight, 1, 1), v1::F32,
         *needs_low.mutable_routing_weights());
  *needs_high.mutable_routing_weights() = needs_low.routing_weights();
  const std::vector<int32_t> ids = {3, 12};
  EncodeIds(MatrixView<const int32_t>(&ids[0], 1, 1),
            *needs_low.mutable_expert_ids());
  EncodeIds(MatrixView<const int32_t>(&ids[1], 1, 1),
            *needs_high.mutable_expert_ids());
  MOE_EXPECT_OK(connection.Forward(needs_low));
  MOE_EXPECT_OK(connection.Forward(needs_high));
  MOE_ASSERT_OK_AND_ASSIGN(v1::ModelInfo info, connection.GetModel("demo"));
  ASSERT_EQ(info.shards_size(), 2);
  EXPECT_TRUE(info.shards(0).up() && info.shards(1).up());

  const std::string address = high->grpc_address();
  high.reset();
  MOE_EXPECT_OK(connection.Forward(needs_low));
  EXPECT_THAT(connection.Forward(needs_high),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("shard s1: no replica answers")));
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  do {
    MOE_ASSERT_OK_AND_ASSIGN(info, connection.GetModel("demo"));
  } while (info.shards(1).up() && absl::Now() < give_up);
  EXPECT_TRUE(info.shards(0).up());
  EXPECT_FALSE(info.shards(1).up());
  // Dense layers are the front's.
  MOE_EXPECT_OK(connection.Forward(Request(2, 3, 1)));

  ServerOptions again = Options();
  again.listen_address = address;
  high = StartShard("8-15", again);
  EXPECT_THAT(CallUntil(*front, absl::StatusCode::kOk), IsOk());
}

TEST_F(ShardedServerTest, MissingExpertsAreLeftOutIfAskedTo) {
  const auto whole = Start(Options());
  const auto low = StartShard("0-7");
  auto high = StartShard("8-15");
  ServerOptions options = FrontOptions(
      {{{low->grpc_address()}, "0-7"}, {{high->grpc_address()}, "8-15"}});
  options.leave_out_missing = true;
  const auto front = Start(options);
  // A token with experts on both sides, one with none on the lower.
  v1::ForwardRequest request = Request(0, 2, 1);
  const std::vector<int32_t> ids = {3, 12, 13, 9};
  const std::vector<float> weights = {0.25F, 0.75F, 0.5F, 0.5F};
  EncodeIds(MatrixView<const int32_t>(ids.data(), 2, 2),
            *request.mutable_expert_ids());
  Encode(ConstMatrix(weights.data(), 2, 2), v1::F32,
         *request.mutable_routing_weights());
  const Connection connection = Connect(*front);
  MOE_ASSERT_OK_AND_ASSIGN(const auto before, connection.Forward(request));
  EXPECT_EQ(before.left_out_experts(), 0);
  MOE_ASSERT_OK_AND_ASSIGN(const auto want, Connect(*whole).Forward(request));
  EXPECT_EQ(before.output().data(), want.output().data());

  high.reset();
  EXPECT_THAT(connection.Forward(request),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("shard s1: no replica answers")));
  // The first token alone: its other expert, with all of the weight.
  const auto first_row = [](v1::Tensor& tensor) {
    tensor.set_shape(0, 1);
    tensor.mutable_data()->resize(tensor.data().size() / 2);
  };
  first_row(*request.mutable_hidden_states());
  first_row(*request.mutable_expert_ids());
  first_row(*request.mutable_routing_weights());
  request.set_return_routing(true);
  request.set_request_id("id");
  MOE_ASSERT_OK_AND_ASSIGN(const auto got, connection.Forward(request));
  EXPECT_EQ(got.left_out_experts(), 1);
  EXPECT_GT(got.timing().compute_seconds(), 0);
  EXPECT_EQ(got.request_id(), "id");
  MOE_ASSERT_OK_AND_ASSIGN(const IdMatrix used, ToIds(got.expert_ids()));
  EXPECT_THAT(used.values, ElementsAre(3, -1));
  MOE_ASSERT_OK_AND_ASSIGN(const FloatMatrix scaled,
                           ToFloats(got.routing_weights()));
  EXPECT_THAT(scaled.values, ElementsAre(1, 0));
  const std::vector<int32_t> alone = {3, -1};
  const std::vector<float> one = {1, 0};
  EncodeIds(MatrixView<const int32_t>(alone.data(), 1, 2),
            *request.mutable_expert_ids());
  Encode(ConstMatrix(one.data(), 1, 2), v1::F32,
         *request.mutable_routing_weights());
  MOE_ASSERT_OK_AND_ASSIGN(const auto same, Connect(*whole).Forward(request));
  EXPECT_EQ(got.output().data(), same.output().data());
}

TEST_F(ShardedServerTest, AReplicaThatComesBackWithOtherWeightsIsNotUsed) {
  auto shard = StartShard("0-15");
  const std::string address = shard->grpc_address();
  const auto front = Start(FrontOptions({{{address}, "0-15"}}));
  MOE_EXPECT_OK(Connect(*front).Forward(Request(0, 4, 1)));
  shard.reset();
  EXPECT_THAT(CallUntil(*front, absl::StatusCode::kUnavailable),
              StatusIs(absl::StatusCode::kUnavailable, _));
  ServerOptions other = Options();
  other.listen_address = address;
  other.weight_format = WeightFormat::kBF16;
  shard = StartShard("0-15", other);
  // As long as it is away, and when it is back.
  absl::Status status;
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  do {
    status = Connect(*front).Forward(Request(0, 4, 1)).status();
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, _));
  } while (status.message().find("another one here") == std::string::npos &&
           absl::Now() < give_up);
  EXPECT_THAT(status.message(), HasSubstr("shard s0: "));
}

TEST_F(ShardedServerTest, FollowsThePlacementFileWithoutDroppingRequests) {
  const auto whole = Start(Options());
  auto first = StartShard("0-15");
  const auto second = StartShard("0-15");
  const auto front = Start(FrontOptions({{{first->grpc_address()}, "0-15"}}));
  ExpectSameBytes(*whole, *front);
  // No good: the old one stays.
  WritePlacement({{{second->grpc_address()}, "0-3"}});
  front->LookForChangedFiles();
  ExpectSameBytes(*whole, *front);
  WritePlacement(
      {{{second->grpc_address()}, "0-7"}, {{second->grpc_address()}, "8-15"}});
  front->LookForChangedFiles();
  const Connection connection = Connect(*front);
  MOE_ASSERT_OK(connection.Forward(Request(0, 4, 1)).status());
  MOE_ASSERT_OK_AND_ASSIGN(const v1::ModelInfo info,
                           connection.GetModel("demo"));
  ASSERT_EQ(info.shards_size(), 2);
  MOE_ASSERT_OK_AND_ASSIGN(const v1::ListModelsResponse list,
                           connection.ListModels());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_EQ(list.models(0).shards_size(), 2);
  first.reset();
  ExpectSameBytes(*whole, *front);
}

// A shard that answers as it is told.
class HostileShard final : public shards::ExpertShardService::Service {
 public:
  HostileShard(const shards::ShardDescription& description)
      : says_(description) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(this);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    health_.SetServingStatus("moe.v1.MoeService", true);
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  grpc::Status DescribeShard(grpc::ServerContext* /*context*/,
                             const shards::DescribeShardRequest* /*request*/,
                             shards::ShardDescription* response) override {
    *response = says_;
    return grpc::Status::OK;
  }
  grpc::Status ForwardExperts(
      grpc::ServerContext* /*context*/,
      const shards::ForwardExpertsRequest* request,
      shards::ForwardExpertsResponse* response) override {
    answer(*request, *response);
    return refusal;
  }

  const std::string& address() const { return address_; }
  std::function<void(const shards::ForwardExpertsRequest&,
                     shards::ForwardExpertsResponse&)>
      answer;
  grpc::Status refusal;  // OK: none

 private:
  const shards::ShardDescription says_;
  std::string address_;
  Backend backend_;
  HealthService health_{&backend_.services()};
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ShardedServerTest, HealthOfAModelFollowsItsLoading) {
  const auto shard = StartShard("0-15");
  ServerOptions options = FrontOptions({{{shard->grpc_address()}, "0-15"}});
  options.model_control = true;
  const auto front = Start(options);
  const auto channel = grpc::CreateChannel(front->grpc_address(),
                                           grpc::InsecureChannelCredentials());
  const auto health = grpc::health::v1::Health::NewStub(channel);
  const auto serving = [&] {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service("demo");
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(health->Check(&context, request, &response).ok());
    return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  const auto models = inference::GRPCInferenceService::NewStub(channel);
  EXPECT_TRUE(serving());
  {
    grpc::ClientContext context;
    inference::RepositoryModelUnloadRequest request;
    request.set_model_name("demo");
    inference::RepositoryModelUnloadResponse response;
    ASSERT_TRUE(
        models->RepositoryModelUnload(&context, request, &response).ok());
  }
  EXPECT_FALSE(serving());
  {
    grpc::ClientContext context;
    inference::RepositoryModelLoadRequest request;
    request.set_model_name("demo");
    inference::RepositoryModelLoadResponse response;
    ASSERT_TRUE(models->RepositoryModelLoad(&context, request, &response).ok());
  }
  EXPECT_TRUE(serving());
}

TEST_F(ShardedServerTest, AShardOfAnotherReleaseIsRefusedByName) {
  shards::ShardDescription other = DescriptionOfAGoodShard();
  const std::string release = other.version();
  other.set_version("0.0.\n");
  const HostileShard shard(other);
  EXPECT_THAT(
      Server::Start(FrontOptions({{{shard.address()}, "0-15"}})),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr(absl::StrCat("shard s0: is of release \"0.0.\\n\", "
                                      "want ",
                                      release, " as this front"))));
  // A server that knows no such service: a whole one, or a shard of a release
  // that calls it otherwise.
  const auto whole = Start(Options());
  EXPECT_THAT(
      Server::Start(FrontOptions({{{whole->grpc_address()}, "0-15"}})),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("shard s0: is no shard, or one of another release")));
}

TEST_F(ShardedServerTest, AHostileShardFailsOnlyThoseWhoNeedIt) {
  HostileShard shard(DescriptionOfAGoodShard());
  const auto right = [](const shards::ForwardExpertsRequest& request,
                        shards::ForwardExpertsResponse& response) {
    const std::vector<float> zeros(
        static_cast<size_t>(request.rows_size() * kDModel));
    Encode(ConstMatrix(zeros.data(), request.rows_size(), kDModel), v1::F32,
           *response.mutable_output());
  };
  shard.answer = right;
  const auto front = Start(FrontOptions({{{shard.address()}, "0-15"}}));
  const Connection connection = Connect(*front);
  MOE_EXPECT_OK(connection.Forward(Request(0, 4, 1)));

  struct Answer {
    const char* name;
    std::function<void(v1::Tensor&)> change;
    const char* message;
  };
  const Answer answers[] = {
      {"none", [](v1::Tensor& t) { t.Clear(); }, "output"},
      {"too few rows",
       [](v1::Tensor& t) {
         t.set_shape(0, 1);
         t.mutable_data()->resize(4 * kDModel);
       },
       "want 16 rows, got 1"},
      {"too many rows",
       [](v1::Tensor& t) {
         t.set_shape(0, 17);
         t.mutable_data()->resize(size_t{17} * 4 * kDModel);
       },
       "output"},
      {"another width", [](v1::Tensor& t) { t.set_shape(1, kDModel - 1); },
       "output"},
      {"negative rows", [](v1::Tensor& t) { t.set_shape(0, -1); }, "output"},
      {"missing bytes", [](v1::Tensor& t) { t.mutable_data()->pop_back(); },
       "output"},
      {"another type", [](v1::Tensor& t) { t.set_dtype(v1::I32); }, "output"},
      {"no type",
       [](v1::Tensor& t) { t.set_dtype(static_cast<v1::DType>(77)); },
       "output"},
  };
  for (const Answer& answer : answers) {
    SCOPED_TRACE(answer.name);
    shard.answer = [&](const shards::ForwardExpertsRequest& request,
                       shards::ForwardExpertsResponse& response) {
      right(request, response);
      answer.change(*response.mutable_output());
    };
    EXPECT_THAT(connection.Forward(Request(0, 4, 1)),
                StatusIs(absl::StatusCode::kUnavailable,
                         testing::AllOf(HasSubstr("shard s0: answers wrongly"),
                                        HasSubstr(answer.message))));
    MOE_EXPECT_OK(connection.Forward(Request(2, 4, 1)));
  }
  // NaN stays in the rows that it was given for: here, all; the next request is
  // as it should be.
  shard.answer = [&](const shards::ForwardExpertsRequest& request,
                     shards::ForwardExpertsResponse& response) {
    const std::vector<float> nans(
        static_cast<size_t>(request.rows_size() * kDModel), NAN);
    Encode(ConstMatrix(nans.data(), request.rows_size(), kDModel), v1::F32,
           *response.mutable_output());
  };
  MOE_EXPECT_OK(connection.Forward(Request(0, 4, 1)));
  shard.answer = right;
  MOE_ASSERT_OK_AND_ASSIGN(const auto after,
                           connection.Forward(Request(0, 4, 1)));
  MOE_ASSERT_OK_AND_ASSIGN(const FloatMatrix output, ToFloats(after.output()));
  EXPECT_THAT(output.values, ::testing::Each(0.0F));
}

TEST_F(ShardedServerTest, FailuresAreBoundedAndCountedByTheirCode) {
  HostileShard shard(DescriptionOfAGoodShard());
  std::string padding;
  shard.answer = [&](const shards::ForwardExpertsRequest& request,
                     shards::ForwardExpertsResponse& response) {
    const std::vector<float> zeros(
        static_cast<size_t>(request.rows_size() * kDModel));
    Encode(ConstMatrix(zeros.data(), request.rows_size(), kDModel), v1::F32,
           *response.mutable_output());
    // A field that nobody knows is left alone, up to a length.
    response.GetReflection()
        ->MutableUnknownFields(&response)
        ->AddLengthDelimited(1000, padding);
  };
  ServerOptions options = FrontOptions({{{shard.address()}, "0-15"}});
  options.metrics_address = "127.0.0.1:0";
  options.max_message_bytes = 1 << 20;
  const auto front = Start(options);
  const Connection connection = Connect(*front);
  const auto counted = [&](absl::string_view code) {
    const auto page = HttpGet("--metrics", {.address = front->metrics_address(),
                                            .path = "/metrics",
                                            .password = ""});
    MOE_EXPECT_OK(page.status());
    const std::string name = absl::StrCat("\nmoe_shard_failures_total{code=\"",
                                          code, "\",shard=\"s0\"} ");
    const size_t at = page->find(name);
    EXPECT_NE(at, std::string::npos) << name;
    return at == std::string::npos
               ? -1
               : std::atoi(page->c_str() + at + name.size());
  };
  padding.assign(50'000, 'x');
  MOE_EXPECT_OK(connection.Forward(Request(0, 4, 1)).status());
  padding.assign(100'000, 'x');
  EXPECT_THAT(connection.Forward(Request(0, 4, 1)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("shard s0: answers wrongly: want at most "
                                 "65536 bytes besides the data of tensors")));
  padding.assign(2'000'000, 'x');
  EXPECT_THAT(connection.Forward(Request(0, 4, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("shard s0: Received message larger")));
  EXPECT_GE(counted("RESOURCE_EXHAUSTED"), 1);
  EXPECT_EQ(counted("UNAUTHENTICATED"), 0);

  padding.clear();
  shard.refusal = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no token");
  EXPECT_THAT(connection.Forward(Request(0, 4, 1)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shard s0")));
  EXPECT_GE(counted("UNAUTHENTICATED"), 1);
  shard.refusal = grpc::Status::OK;
  MOE_EXPECT_OK(connection.Forward(Request(0, 4, 1)).status());
}

TEST_F(ShardedServerTest, AShardThatNeverAnswersCostsTheTimeout) {
  HostileShard shard(DescriptionOfAGoodShard());
  absl::Notification end;
  std::atomic<bool> hang = false;
  shard.answer = [&](const shards::ForwardExpertsRequest& request,
                     shards::ForwardExpertsResponse& response) {
    if (hang) end.WaitForNotification();
    const std::vector<float> zeros(
        static_cast<size_t>(request.rows_size() * kDModel));
    Encode(ConstMatrix(zeros.data(), request.rows_size(), kDModel), v1::F32,
           *response.mutable_output());
  };
  ServerOptions options = FrontOptions({{{shard.address()}, "0-15"}});
  options.shard_timeout = absl::Seconds(2);
  const auto front = Start(options);
  hang = true;
  EXPECT_THAT(Connect(*front).Forward(Request(0, 4, 1)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("shard s0: no answer within")));
  // The caller's own deadline comes first.
  Connection impatient(front->grpc_address(), absl::Milliseconds(500));
  EXPECT_THAT(impatient.Forward(Request(0, 4, 1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, _));
  end.Notify();
}

TEST_F(ShardedServerTest, AFrontShowsItsTokenToShards) {
  ServerOptions guarded = Options();
  guarded.auth_token_file = folder_.Write("tokens", "secret\n");
  const auto shard = StartShard("0-15", guarded);
  ServerOptions options = FrontOptions({{{shard->grpc_address()}, "0-15"}});
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("shard s0: does not say what it holds: "
                                 "UNAUTHENTICATED")));
  options.shard_caller.token_file = folder_.Write("mine", "secret\n");
  const auto front = Start(options);
  ExpectSameBytes(*Start(Options()), *front);
  options.shard_caller.token_file = folder_.File("none");
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--shard_token_file: can't read")));
}

TEST_F(ShardedServerTest, OptionsThatContradictEachOtherAreRefused) {
  ServerOptions options = Options();
  options.shard_name = "s0";
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--shard_name: want --shards")));
  options.shards_file = WritePlacement({{{"127.0.0.1:1"}, "0-15"}});
  options.shard_name = "other";
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--shard_name: want a shard of --shards")));
}

}  // namespace
}  // namespace moe
