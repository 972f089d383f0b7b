// The responses of moe.v1, as bytes.

#include "server/moe_v1/moe_request.h"

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/v1/moe.pb.h"
#include "router/models/model.h"
#include "server/engine/engine.h"
#include "server/wire/wire_fields.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::ElementsAre;

constexpr int64_t kDModel = 256;  // of the demo model
constexpr ServiceLimits kLimits = {.max_message_bytes = 1 << 20,
                                   .max_request_tokens = 64};

// Waits for a request that no call has brought, and keeps its last timing.
class Offline final : public RequestCodec, public RequestObserver {
 public:
  explicit Offline(RequestCodec* codec) : codec_(*codec) {}

  void Decode(int64_t first, Matrix hidden_states) const override {
    codec_.Decode(first, hidden_states);
  }
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override {
    codec_.DecodeRouting(first, ids, weights);
  }
  void LayOut() override { codec_.LayOut(); }
  void Encode(int64_t first, const EngineResult& rows) override {
    timing_ = rows.timing;
    codec_.Encode(first, rows);
  }
  bool Cancelled() const override { return false; }
  void OnFinished(const absl::Status& status) override {
    MOE_EXPECT_OK(status);
    done_.Notify();
  }
  void Wait() { done_.WaitForNotification(); }
  const EngineTiming& timing() const { return timing_; }

 private:
  RequestCodec& codec_;
  EngineTiming timing_;
  absl::Notification done_;
};

class MoeRequestTest : public ::testing::Test {
 protected:
  MoeRequestTest() {
    auto served = std::make_shared<ServedModel>();
    served->name = "demo";
    served->model = *LoadDemoModel({}, executor_);
    served->layer_metrics.resize(served->model->layers().size());
    registry_.Publish(std::move(served));
  }

  // A request of rows of zeros.
  static v1::ForwardRequest Message(int64_t tokens) {
    v1::ForwardRequest message;
    message.set_model("demo");
    message.set_request_id("id");
    v1::Tensor& states = *message.mutable_hidden_states();
    states.set_dtype(v1::F32);
    states.add_shape(tokens);
    states.add_shape(kDModel);
    states.mutable_data()->resize(static_cast<size_t>(tokens * kDModel) *
                                  sizeof(float));
    return message;
  }
  template <typename Message>
  absl::StatusOr<ParsedRequest> Parse(ParseFunction* parse,
                                      const Message& message) {
    const grpc::Slice slice(message.SerializeAsString());
    return parse(
        grpc::ByteBuffer(&slice, 1),
        {.registry = registry_, .limits = kLimits, .now = SteadyTime()},
        &label_);
  }

  static int64_t BytesOf(const v1::ForwardRequest& message) {
    return static_cast<int64_t>(message.ByteSizeLong());
  }
  static std::string BytesOf(const grpc::ByteBuffer& buffer) {
    grpc::Slice slice;
    EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
    return std::string(slice.begin(), slice.end());
  }
  static std::string ResponseOf(const ParsedRequest& request) {
    return BytesOf(request.response->Take());
  }

  RequestLabel label_;
  Executor executor_{1};
  ExpertWorkspace workspace_{&executor_};
  ModelRegistry registry_;
};

TEST_F(MoeRequestTest, TimingTakesItsTwentyBytesHoweverLittleItIs) {
  const std::string zero(sizeof(double), '\0');
  const std::string timing = "\x32\x12\x09" + zero + "\x11" + zero;
  const std::string output(
      "\x12\x09"
      "\x08\x01"              // F32
      "\x12\x03\x00\x80\x02"  // [0, 256]
      "\x1a\x00",             // no data
      11);
  const std::string want = "\x0a\x02id" + timing + output;

  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest unary,
                           Parse(&ParseForward, Message(0)));
  unary.codec->LayOut();
  unary.codec->Encode(0, {});
  EXPECT_EQ(ResponseOf(unary), want);

  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest streamed,
                           Parse(&ParseStreamedForward, Message(0)));
  streamed.codec->LayOut();
  streamed.codec->Encode(0, {});
  EXPECT_EQ(ResponseOf(streamed), FieldHead(1, want.size()) + want);
}

TEST_F(MoeRequestTest, TimingIsThatOfAllPartsOfTheRows) {
  Metrics metrics;
  Engine engine({.batching = {.max_batch_tokens = 16}}, &executor_,
                BestKernels(), &metrics);
  MOE_ASSERT_OK_AND_ASSIGN(ParsedRequest parsed,
                           Parse(&ParseForward, Message(40)));
  Offline offline(parsed.codec.get());
  EngineRequest request(parsed.call, SteadyTime::max(), parsed.bytes, &offline,
                        &offline);
  MOE_ASSERT_OK(engine.Submit(&request));
  offline.Wait();
  v1::ForwardResponse response;
  ASSERT_TRUE(response.ParseFromString(ResponseOf(parsed)));
  EXPECT_EQ(response.request_id(), "id");
  EXPECT_EQ(response.output().data().size(), 40 * kDModel * sizeof(float));
  using Seconds = std::chrono::duration<double>;
  EXPECT_EQ(response.timing().queue_seconds(),
            Seconds(offline.timing().queued).count());
  EXPECT_EQ(response.timing().compute_seconds(),
            Seconds(offline.timing().computed).count());
  EXPECT_GT(response.timing().compute_seconds(), 0);
}

TEST_F(MoeRequestTest, CallIsWhatTheMessageAsksFor) {
  v1::ForwardRequest forward = Message(3);
  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest plain,
                           Parse(&ParseForward, forward));
  EXPECT_EQ(plain.call.tokens, 3);
  EXPECT_EQ(plain.call.given_k, 0);
  EXPECT_THAT(plain.call.parts, ElementsAre(ResponsePart::kOutput));
  EXPECT_EQ(plain.bytes, BytesOf(forward) + 3 * kDModel * 4)
      << "there and back";
  EXPECT_EQ(plain.deadline, SteadyTime::max());

  forward.set_return_routing(true);
  forward.set_output_dtype(v1::BF16);
  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest routing,
                           Parse(&ParseForward, forward));
  EXPECT_THAT(routing.call.parts,
              ElementsAre(ResponsePart::kOutput, ResponsePart::kExpertIds,
                          ResponsePart::kRoutingWeights));
  EXPECT_FALSE(routing.call.route_only());
  EXPECT_EQ(routing.bytes,
            BytesOf(forward) + 3 * kDModel * 2 + 3 * 4 * (4 + 4));

  forward.set_layer(2);  // dense
  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest dense,
                           Parse(&ParseForward, forward));
  EXPECT_THAT(dense.call.parts, ElementsAre(ResponsePart::kOutput));

  v1::RouteRequest route;
  route.set_model("demo");
  route.set_return_router_logits(true);
  *route.mutable_hidden_states() = forward.hidden_states();
  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest routed,
                           Parse(&ParseRoute, route));
  EXPECT_THAT(routed.call.parts, ElementsAre(ResponsePart::kExpertIds,
                                             ResponsePart::kRoutingWeights,
                                             ResponsePart::kRouterLogits));
  EXPECT_TRUE(routed.call.route_only());
}

TEST_F(MoeRequestTest, ErrorOfAStreamSaysWhichRequestFailed) {
  v1::ForwardRequest wrong = Message(1);
  wrong.set_layer(9);
  const absl::Status status = Parse(&ParseStreamedForward, wrong).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, _));
  v1::ForwardStreamResponse response;
  ASSERT_TRUE(
      response.ParseFromString(BytesOf(ForwardStreamError(label_, status, 7))));
  EXPECT_EQ(response.response().request_id(), "id");
  EXPECT_EQ(response.code(), 5);
  EXPECT_EQ(response.message(), status.message());
  EXPECT_EQ(response.retry_after_ms(), 7);
}

TEST_F(MoeRequestTest, RequestIdThatIsTooLongIsNotReturned) {
  v1::ForwardRequest wrong = Message(1);
  wrong.set_request_id(std::string(129, 'x'));
  EXPECT_THAT(Parse(&ParseForward, wrong).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "request_id: want at most 128 bytes, got 129"));
  EXPECT_EQ(label_.request_id, "");
}

}  // namespace
}  // namespace moe
