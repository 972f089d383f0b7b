#include "server/client/load.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

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

  std::string Json() const { return TempFolder::Contents(options_.json_file); }

  TempFolder folder_;
  std::unique_ptr<Server> server_;
  LoadRunOptions options_;
};

TEST_F(LoadTest, ClosedLoopChecksAnswersAndWritesTheResult) {
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_TRUE(right);
  EXPECT_THAT(Json(), HasSubstr("\"requests\": 100,"));
  EXPECT_THAT(Json(), HasSubstr("\"errors\": {}"));
  EXPECT_THAT(Json(), HasSubstr("\"wrong\": 0"));
}

TEST_F(LoadTest, OpenLoopChecksAnswers) {
  options_.rate = 1000;
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_TRUE(right);
  EXPECT_THAT(Json(), HasSubstr("\"requests\": 100,"));
}

TEST_F(LoadTest, StreamsCheckAnswers) {
  options_.stream = true;
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_TRUE(right);
  EXPECT_THAT(Json(), HasSubstr("\"requests\": 100,"));
}

TEST_F(LoadTest, CountsErrorsByCode) {
  options_.check = false;
  options_.layers = {77};
  MOE_ASSERT_OK_AND_ASSIGN(const bool right, RunLoadTest(options_));
  EXPECT_TRUE(right);
  EXPECT_THAT(Json(), HasSubstr("\"errors\": {\"NOT_FOUND\": 100}"));
}

TEST_F(LoadTest, RefusesMoreTokensThanTheServerTakes) {
  MOE_ASSERT_OK_AND_ASSIGN(options_.tokens, TokenDistribution::Parse("9000"));
  EXPECT_THAT(RunLoadTest(options_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--tokens: want at most")));
}

}  // namespace
}  // namespace moe
