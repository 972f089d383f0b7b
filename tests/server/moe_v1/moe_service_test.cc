#include "server/moe_v1/moe_service.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "server/client/connection.h"
#include "server/server.h"
#include "server/wire/tensor_codec.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

constexpr int64_t kDModel = 256;  // of the demo model

ServerOptions DemoOptions() {
  ServerOptions options;
  options.demo = true;
  options.listen_address = "127.0.0.1:0";
  options.metrics_address = "";
  options.num_compute_threads = 1;
  return options;
}

// Rows r with x[r][c] = sin(seed + r + 0.1 c).
v1::ForwardRequest Request(int64_t tokens, int layer = 0, int seed = 0) {
  v1::ForwardRequest request;
  request.set_model("demo");
  request.set_layer(layer);
  std::vector<float> rows(static_cast<size_t>(tokens * kDModel));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] =
        static_cast<float>(std::sin(seed + static_cast<double>(i / kDModel) +
                                    0.1 * static_cast<double>(i % kDModel)));
  }
  Encode(ConstMatrix(rows.data(), tokens, kDModel), v1::F32,
         *request.mutable_hidden_states());
  return request;
}

class MoeServiceTest : public ::testing::Test {
 protected:
  void Start(const ServerOptions& options = DemoOptions()) {
    MOE_ASSERT_OK_AND_ASSIGN(server_, Server::Start(options));
    connection_ = std::make_unique<Connection>(server_->grpc_address());
    stub_ = v1::MoeService::NewStub(grpc::CreateChannel(
        server_->grpc_address(), grpc::InsecureChannelCredentials()));
  }

  v1::Tensor Output(const v1::ForwardRequest& request) {
    auto response = connection_->Forward(request);
    MOE_EXPECT_OK(response);
    return response.ok() ? response->output() : v1::Tensor();
  }

  // start: when the request was sent.
  static void ExpectTiming(const v1::ForwardResponse& response,
                           SteadyTime start) {
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start;
    EXPECT_GE(response.timing().queue_seconds(), 0);
    EXPECT_GT(response.timing().compute_seconds(), 0);
    EXPECT_LE(
        response.timing().queue_seconds() + response.timing().compute_seconds(),
        elapsed.count());
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<v1::MoeService::Stub> stub_;
};

TEST_F(MoeServiceTest, AnswersWithShapeTypeAndRequestId) {
  Start();
  v1::ForwardRequest request = Request(3);
  request.set_request_id("some id");
  request.set_return_routing(true);
  request.set_output_dtype(v1::BF16);
  MOE_ASSERT_OK_AND_ASSIGN(const v1::ForwardResponse response,
                           connection_->Forward(request));
  EXPECT_EQ(response.request_id(), "some id");
  EXPECT_EQ(response.output().dtype(), v1::BF16);
  EXPECT_THAT(response.output().shape(), ::testing::ElementsAre(3, kDModel));
  EXPECT_THAT(response.expert_ids().shape(), ::testing::ElementsAre(3, 4));
  EXPECT_THAT(response.routing_weights().shape(), ::testing::ElementsAre(3, 4));
}

TEST_F(MoeServiceTest, RoutingThatRouteReturnsGivesTheSameOutput) {
  Start();
  v1::ForwardRequest request = Request(5);
  const v1::Tensor want = Output(request);
  v1::RouteRequest route;
  route.set_model("demo");
  *route.mutable_hidden_states() = request.hidden_states();
  route.set_return_router_logits(true);
  MOE_ASSERT_OK_AND_ASSIGN(const v1::RouteResponse routing,
                           connection_->Route(route));
  EXPECT_THAT(routing.router_logits().shape(), ::testing::ElementsAre(5, 16));
  *request.mutable_expert_ids() = routing.expert_ids();
  *request.mutable_routing_weights() = routing.routing_weights();
  EXPECT_EQ(Output(request).data(), want.data());
}

TEST_F(MoeServiceTest, LargeRequestsAreSplitAndJoined) {
  ServerOptions options = DemoOptions();
  options.max_batch_tokens = 7;
  Start(options);
  v1::ForwardRequest request = Request(40);
  request.set_return_routing(true);
  MOE_ASSERT_OK_AND_ASSIGN(const v1::ForwardResponse response,
                           connection_->Forward(request));
  EXPECT_THAT(response.expert_ids().shape(), ::testing::ElementsAre(40, 4));
  MOE_ASSERT_OK_AND_ASSIGN(const FloatMatrix got, ToFloats(response.output()));
  for (const int row : {0, 6, 7, 39}) {
    v1::ForwardRequest one = Request(1, 0, row);
    MOE_ASSERT_OK_AND_ASSIGN(const FloatMatrix want, ToFloats(Output(one)));
    for (int64_t c = 0; c < kDModel; ++c) {
      ASSERT_NEAR(got.view().Row(row)[c], want.view().Row(0)[c], 1e-5)
          << "row " << row;
    }
  }
}

TEST_F(MoeServiceTest, AnswersSayWhereTheTimeWent) {
  ServerOptions options = DemoOptions();
  options.max_batch_tokens = 7;
  Start(options);
  grpc::ClientContext context;
  auto stream = stub_->ForwardStream(&context);
  // None, in one batch, in several; routed and dense.
  for (const int tokens : {0, 1, 40}) {
    for (const int layer : {0, 2}) {
      SCOPED_TRACE(absl::StrCat(tokens, " tokens, layer ", layer));
      SteadyTime start = std::chrono::steady_clock::now();
      MOE_ASSERT_OK_AND_ASSIGN(const v1::ForwardResponse response,
                               connection_->Forward(Request(tokens, layer)));
      ExpectTiming(response, start);
      start = std::chrono::steady_clock::now();
      ASSERT_TRUE(stream->Write(Request(tokens, layer)));
      v1::ForwardStreamResponse streamed;
      ASSERT_TRUE(stream->Read(&streamed));
      ExpectTiming(streamed.response(), start);
    }
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(MoeServiceTest, RefusesAnswersThatFitNoMessage) {
  ServerOptions options = DemoOptions();
  options.max_message_bytes = 4096;
  Start(options);
  v1::ForwardRequest request = Request(0);
  std::vector<float> rows(5 * kDModel, 1.0F);
  Encode(ConstMatrix(rows.data(), 5, kDModel), v1::BF16,
         *request.mutable_hidden_states());
  MOE_EXPECT_OK(connection_->Forward(request));
  request.set_output_dtype(v1::F32);
  EXPECT_THAT(connection_->Forward(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("at most 4096 bytes")));
}

TEST_F(MoeServiceTest, StreamAnswersInOrderWithTheirIds) {
  Start();
  constexpr int kRequests = 100;  // more than a stream keeps in flight
  grpc::ClientContext context;
  auto stream = stub_->ForwardStream(&context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      v1::ForwardRequest request = Request(i % 5, i % 3, i);
      request.set_request_id(absl::StrCat(i));
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  v1::ForwardStreamResponse response;
  int responses = 0;
  for (; stream->Read(&response); ++responses) {
    EXPECT_EQ(response.code(), 0) << response.message();
    EXPECT_EQ(response.response().request_id(), absl::StrCat(responses));
    EXPECT_EQ(response.response().output().data(),
              Output(Request(responses % 5, responses % 3, responses)).data());
  }
  writer.join();
  EXPECT_EQ(responses, kRequests);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(MoeServiceTest, StreamSurvivesBadRequests) {
  Start();
  grpc::ClientContext context;
  auto stream = stub_->ForwardStream(&context);
  v1::ForwardRequest bad = Request(2);
  bad.set_layer(77);
  bad.set_request_id("bad");
  v1::ForwardRequest good = Request(2);
  good.set_request_id("good");
  ASSERT_TRUE(stream->Write(bad));
  ASSERT_TRUE(stream->Write(good));
  stream->WritesDone();
  v1::ForwardStreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(response.message(), HasSubstr("layer: want one of"));
  EXPECT_EQ(response.response().request_id(), "bad");
  EXPECT_FALSE(response.response().has_output());
  EXPECT_FALSE(response.response().has_timing());
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.code(), 0);
  EXPECT_EQ(response.response().request_id(), "good");
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(MoeServiceTest, StreamThatIsNotReadIsCancelledCleanly) {
  Start();
  for (int round = 0; round < 5; ++round) {
    grpc::ClientContext context;
    auto stream = stub_->ForwardStream(&context);
    for (int i = 0; i < 20; ++i) stream->Write(Request(8));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  Output(Request(1));
}

TEST_F(MoeServiceTest, StreamWhoseAnswersAreNotTakenIsEnded) {
  ServerOptions options = DemoOptions();
  options.send_timeout = absl::Milliseconds(100);
  Start(options);
  grpc::ClientContext context;
  connection_->Prepare(&context);
  const auto stream = stub_->ForwardStream(&context);
  const v1::ForwardRequest request = Request(1000);
  while (stream->Write(request)) {  // and no Read until the end
  }
  v1::ForwardStreamResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  Output(Request(1));
}

TEST_F(MoeServiceTest, DrainEndsOpenStreamsAfterTheirAnswers) {
  Start();
  grpc::ClientContext context;
  auto stream = stub_->ForwardStream(&context);
  ASSERT_TRUE(stream->Write(Request(1)));
  v1::ForwardStreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.code(), 0);
  server_->Drain();
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("draining"));
}

TEST_F(MoeServiceTest, FullQueueTellsWhenToRetry) {
  ServerOptions options = DemoOptions();
  options.max_queue_tokens = 1;
  options.max_batch_tokens = 64;
  Start(options);
  // Requests of many tokens at once: all but those that find the queue empty
  // are refused.
  constexpr int kThreads = 16;
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const v1::ForwardRequest request = Request(2000);
      for (int round = 0; round < 20 && refused == 0; ++round) {
        grpc::ClientContext context;
        v1::ForwardResponse response;
        const grpc::Status status =
            stub_->Forward(&context, request, &response);
        if (status.ok()) continue;
        EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
        const auto& trailers = context.GetServerTrailingMetadata();
        const auto hint = trailers.find("grpc-retry-pushback-ms");
        ASSERT_NE(hint, trailers.end());
        EXPECT_GE(
            std::stoi(std::string(hint->second.data(), hint->second.size())),
            1);
        ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(refused, 0);
}

TEST_F(MoeServiceTest, ExpiredDeadlinesAreNotComputed) {
  Start();
  int expired = 0;
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::microseconds(20 * i));
    v1::ForwardResponse response;
    const grpc::Status status = stub_->Forward(&context, Request(1), &response);
    if (status.ok()) continue;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    ++expired;
  }
  EXPECT_GT(expired, 0) << "the first has no time at all";
  Output(Request(1));
}

}  // namespace
}  // namespace moe
