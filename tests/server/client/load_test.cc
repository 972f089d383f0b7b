#include "server/client/load.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "moe/v1/moe.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "server/server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TokenDistributionTest : public ::testing::Test {
 protected:
  // Draws many; returns how often each of 0..20 came.
  static std::vector<int> Counts(absl::string_view text) {
    std::vector<int> counts(21);
    auto distribution = TokenDistribution::Parse(text);
    MOE_EXPECT_OK(distribution);
    std::mt19937_64 random(1);
    for (int i = 0; i < 10'000; ++i) {
      ++counts.at(static_cast<size_t>(distribution->Draw(random)));
    }
    return counts;
  }
};

TEST_F(TokenDistributionTest, NumberIsAlwaysTheSame) {
  EXPECT_EQ(Counts("7")[7], 10'000);
}

TEST_F(TokenDistributionTest, RangeIsEven) {
  const std::vector<int> counts = Counts("3-6");
  for (const size_t tokens : {3, 4, 5, 6}) {
    EXPECT_NEAR(counts[tokens], 2500, 250) << tokens;
  }
}

TEST_F(TokenDistributionTest, PartsComeByTheirWeight) {
  const std::vector<int> counts = Counts("1:9,20:1");
  EXPECT_NEAR(counts[1], 9000, 200);
  EXPECT_NEAR(counts[20], 1000, 200);
}

TEST_F(TokenDistributionTest, KnowsItsLargest) {
  MOE_ASSERT_OK_AND_ASSIGN(const TokenDistribution distribution,
                           TokenDistribution::Parse("1:9,3-512:1,8"));
  EXPECT_EQ(distribution.max(), 512);
}

TEST_F(TokenDistributionTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* text : {"", "x", "-1", "5-3", "1-2-3", "1:0", "1:-1", "1:x",
                           "1:2:3", "1,,2", "1:nan", "1:inf"}) {
    EXPECT_THAT(TokenDistribution::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("--tokens: want")))
        << text;
  }
}

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.demo = true;
    options.listen_address = "127.0.0.1:0";
    options.metrics_address = "";
    MOE_ASSERT_OK_AND_ASSIGN(server_, Server::Start(options));
    options_.connection.address = server_->grpc_address();
    MOE_ASSERT_OK_AND_ASSIGN(options_.tokens, TokenDistribution::Parse("0-9"));
    options_.dtypes = {v1::F32, v1::BF16, v1::F16};
    options_.warmup = absl::ZeroDuration();
    options_.duration = absl::Seconds(60);
    options_.max_requests = 100;
    options_.check = true;
    options_.json_file = folder_.File("load.json");
  }

  nlohmann::json Json() const {
    return nlohmann::json::parse(TempFolder::Contents(options_.json_file));
  }

  TempFolder folder_;
  std::unique_ptr<Server> server_;
  LoadRunOptions options_;
};

TEST_F(LoadTest, ClosedLoopChecksAnswersAndWritesTheResult) {
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_TRUE(right);
  EXPECT_EQ(Json()["requests"], 100);
  EXPECT_EQ(Json()["errors"], nlohmann::json::object());
  EXPECT_EQ(Json()["wrong"], 0);
}

TEST_F(LoadTest, OpenLoopChecksAnswers) {
  options_.rate = 1000;
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_TRUE(right);
  EXPECT_EQ(Json()["requests"], 100);
}

TEST_F(LoadTest, StreamsCheckAnswers) {
  options_.stream = true;
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_TRUE(right);
  EXPECT_TRUE(Json().contains("compute_seconds"));
  EXPECT_EQ(Json()["requests"], 100);
}

TEST_F(LoadTest, CountsErrorsByCode) {
  options_.check = false;
  options_.layers = {77};
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_FALSE(right) << "no request succeeded";
  EXPECT_EQ(Json()["errors"], nlohmann::json({{"NOT_FOUND", 100}}));
}

// Answers nothing but a timing, if it has one.
class StubService final : public v1::MoeService::Service {
 public:
  explicit StubService(std::optional<v1::ForwardTiming> timing)
      : timing_(std::move(timing)) {}

  grpc::Status GetModel(grpc::ServerContext* /*context*/,
                        const v1::GetModelRequest* /*request*/,
                        v1::ModelInfo* info) override {
    info->set_d_model(4);
    info->set_max_request_tokens(100);
    info->add_layers()->set_layer(0);
    return grpc::Status::OK;
  }
  grpc::Status Forward(grpc::ServerContext* /*context*/,
                       const v1::ForwardRequest* /*request*/,
                       v1::ForwardResponse* response) override {
    if (timing_.has_value()) *response->mutable_timing() = *timing_;
    return grpc::Status::OK;
  }

 private:
  const std::optional<v1::ForwardTiming> timing_;
};

class LoadTimingTest : public LoadTest {
 protected:
  void RunAgainst(const std::optional<v1::ForwardTiming>& timing) {
    StubService service(timing);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    options_.connection.address = absl::StrCat("127.0.0.1:", port);
    options_.check = false;
    ::testing::internal::CaptureStdout();
    MOE_EXPECT_OK(RunLoadTest(options_));
    text_ = ::testing::internal::GetCapturedStdout();
  }

  std::string text_;
};

TEST_F(LoadTimingTest, TellsWhatTheServerSpentFromTheRest) {
  v1::ForwardTiming timing;
  timing.set_queue_seconds(3e-9);
  timing.set_compute_seconds(5e-9);
  RunAgainst(timing);
  const nlohmann::json json = Json();
  for (const char* quantile : {"p50", "p90", "p99", "max", "mean"}) {
    EXPECT_NEAR(json["queue_seconds"][quantile], 3e-9, 1e-15) << quantile;
    EXPECT_NEAR(json["compute_seconds"][quantile], 5e-9, 1e-15) << quantile;
  }
  for (const char* part : {"overhead_seconds", "beyond_compute_seconds"}) {
    EXPECT_EQ(json[part].size(), 5) << part;
  }
  for (const char* line : {"queue: p50", "compute: p50", "overhead: p50"}) {
    EXPECT_THAT(text_, HasSubstr(line));
  }
}

TEST_F(LoadTimingTest, ServersThatDoNotSayAreLeftOut) {
  RunAgainst(std::nullopt);
  EXPECT_EQ(Json()["requests"], 100);
  for (const char* word : {"queue", "compute", "overhead"}) {
    EXPECT_FALSE(Json().contains(absl::StrCat(word, "_seconds")));
    EXPECT_THAT(text_, Not(HasSubstr(word)));
  }
}

TEST_F(LoadTest, RefusesMoreTokensThanTheServerTakes) {
  MOE_ASSERT_OK_AND_ASSIGN(options_.tokens, TokenDistribution::Parse("9000"));
  EXPECT_THAT(RunLoadTest(options_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--tokens: want at most")));
}

}  // namespace
}  // namespace moe
