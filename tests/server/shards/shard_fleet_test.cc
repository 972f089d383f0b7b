#include "server/shards/shard_fleet.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "moe/shards/shards.grpc.pb.h"
#include "server/metrics/metrics.h"
#include "server/standard/health_service.h"
#include "tests/server/rpc/in_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Nobody listens on port 1: what shards say of themselves plays no part here.
constexpr char kPlacement[] = R"({"shards":[
    {"name":"low","targets":["ipv4:127.0.0.1:1"],
     "experts":[{"model":"m","experts":"0-3"}]},
    {"name":"other","targets":["ipv4:127.0.0.1:1"],
     "experts":[{"model":"n"}]},
    {"name":"high","targets":["ipv4:127.0.0.1:1"],
     "experts":[{"model":"m","layers":"1","experts":"4-7"},
                {"model":"m","layers":"0","experts":"4-7"}]},
    {"name":"beyond","targets":["ipv4:127.0.0.1:1"],
     "experts":[{"model":"m","layers":"9"}]}]})";

SpreadLayer LayerOf(const std::string& model, int layer) {
  return {.model = model,
          .layer = layer,
          .expert = {.d_model = 8, .d_ff = 4, .activation = {}},
          .fingerprints = std::vector<uint64_t>(8),
          .local_ids = {}};
}

class ShardFleetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fleet = ShardFleet::Open(
        {.placement_file = folder_.Write("placement.json", kPlacement),
         .client = {}},
        &watcher_, &metrics_);
    MOE_ASSERT_OK(fleet.status());
    fleet_ = *std::move(fleet);
  }

  std::vector<std::string> NamesOf(const std::string& model) const {
    std::vector<std::string> names;
    for (const auto& shard : fleet_->ShardsOfModel(model)) {
      names.push_back(shard->name());
    }
    return names;
  }
  // Replaces the placement, and has it looked at.
  void Place(const std::string& placement) {
    folder_.Write("placement.json", placement);
    watcher_.Look();
  }

  TempFolder folder_;
  Metrics metrics_;
  std::unique_ptr<ShardFleet> fleet_;
  FileWatcher watcher_;
};

// A shard that is asked what it holds, and does not say.
class MuteShard final : public shards::ExpertShardService::CallbackService {
 public:
  MuteShard() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    health_.SetServingStatus("moe.v1.MoeService", true);
  }
  ~MuteShard() override { server_->Shutdown(); }

  grpc::ServerUnaryReactor* DescribeShard(
      grpc::CallbackServerContext* /*context*/,
      const shards::DescribeShardRequest* /*request*/,
      shards::ShardDescription* /*response*/) override {
    class Call final : public grpc::ServerUnaryReactor {
     public:
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { const std::unique_ptr<Call> self(this); }
    };
    if (!asked_.HasBeenNotified()) asked_.Notify();
    return std::make_unique<Call>().release();  // owns itself until OnDone
  }

  std::string target() const { return absl::StrCat("ipv4:127.0.0.1:", port_); }
  void WaitUntilAsked() const { asked_.WaitForNotification(); }

 private:
  int port_ = 0;
  absl::Notification asked_;
  Backend backend_;
  HealthService health_{&backend_.services()};
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ShardFleetTest, StopWaitsForNoShardAndEndsAllWaiting) {
  MuteShard shard;
  MOE_ASSERT_OK_AND_ASSIGN(
      const auto fleet,
      ShardFleet::Open(
          {.placement_file = folder_.Write(
               "mute.json",
               absl::StrCat(R"({"shards":[{"name":"mute","targets":[")",
                            shard.target(), R"("],"experts":[{}]}]})")),
           // Longer than the test may take.
           .client = {.caller = {}, .describe_timeout = absl::Hours(1)}},
          &watcher_, &metrics_));
  const SpreadLayer layer = LayerOf("m", 0);
  fleet->Register(&layer);
  absl::Status waited;
  std::thread waiter([&] { waited = fleet->WaitUntilUp("m"); });
  shard.WaitUntilAsked();
  fleet->Stop();
  waiter.join();
  EXPECT_THAT(waited, StatusIs(absl::StatusCode::kUnavailable, _));
  fleet->Unregister(&layer);
  watcher_.Stop();
}

TEST_F(ShardFleetTest, ShardsOfAModelHaveExpertsOfItsLayers) {
  const SpreadLayer first = LayerOf("m", 0);
  const SpreadLayer second = LayerOf("m", 1);
  const SpreadLayer other = LayerOf("n", 1);
  EXPECT_THAT(NamesOf("m"), IsEmpty());
  fleet_->Register(&second);
  EXPECT_THAT(NamesOf("m"), ElementsAre("low", "high"));
  fleet_->Register(&first);
  fleet_->Register(&other);
  EXPECT_THAT(NamesOf("m"), ElementsAre("low", "high"));
  EXPECT_THAT(NamesOf("n"), ElementsAre("other"));
  EXPECT_THAT(NamesOf("unknown"), IsEmpty());
  fleet_->Unregister(&second);
  fleet_->Unregister(&other);
  EXPECT_THAT(NamesOf("m"), ElementsAre("low", "high"));
  EXPECT_THAT(NamesOf("n"), IsEmpty());
  fleet_->Unregister(&first);
  EXPECT_THAT(NamesOf("m"), IsEmpty());
}

TEST_F(ShardFleetTest, VersionsOfAModelShareItsName) {
  const SpreadLayer layer = LayerOf("m", 0);
  const SpreadLayer beyond = LayerOf("m", 9);  // of the next version only
  fleet_->Register(&layer);
  fleet_->Register(&beyond);
  EXPECT_THAT(NamesOf("m"), ElementsAre("low", "high", "beyond"));
  fleet_->Unregister(&layer);
  EXPECT_THAT(NamesOf("m"), ElementsAre("low", "beyond"));
  fleet_->Unregister(&beyond);
}

TEST_F(ShardFleetTest, ShardsOfAModelFollowThePlacement) {
  const SpreadLayer layer = LayerOf("m", 0);
  fleet_->Register(&layer);
  const auto before = fleet_->ShardsOfModel("m");
  Place(R"({"shards":[
      {"name":"new","targets":["ipv4:127.0.0.1:1"],
       "experts":[{"experts":"1-7"}]},
      {"name":"low","targets":["ipv4:127.0.0.1:1"],
       "experts":[{"experts":"0"}]}]})");
  EXPECT_THAT(NamesOf("m"), ElementsAre("new", "low"));
  // Who stays keeps its connections.
  EXPECT_EQ(fleet_->ShardsOfModel("m").back(), before.front());
  // Layers that come later follow it as well.
  const SpreadLayer other = LayerOf("n", 5);
  fleet_->Register(&other);
  EXPECT_THAT(NamesOf("n"), ElementsAre("new", "low"));
  fleet_->Unregister(&other);
  fleet_->Unregister(&layer);
}

}  // namespace
}  // namespace moe
