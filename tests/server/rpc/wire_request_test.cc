// The answers of moe.v1, as bytes.

#include "server/rpc/wire_request.h"

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "router/models/model.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

constexpr int64_t kDModel = 256;  // of the demo model
constexpr ServiceLimits kLimits = {.max_message_bytes = 1 << 20,
                                   .max_request_tokens = 64};

// A request that no call has brought.
class OfflineRequest final : public ForwardWireRequest {
 public:
  using ForwardWireRequest::ForwardWireRequest;

  bool Cancelled() const override { return false; }
  void Finish(const absl::Status& status) override {
    MOE_EXPECT_OK(status);
    done_.Notify();
  }
  void Wait() { done_.WaitForNotification(); }

 private:
  absl::Notification done_;
};

class WireRequestTest : public ::testing::Test {
 protected:
  WireRequestTest() {
    auto served = std::make_shared<ServedModel>();
    served->name = "demo";
    served->model = *LoadDemoModel({}, executor_);
    served->layer_metrics.resize(served->model->layers().size());
    registry_.Publish(std::move(served));
  }

  // A request of rows of zeros, ready to run.
  void Prepare(int64_t tokens, OfflineRequest* request) const {
    v1::ForwardRequest message;
    message.set_model("demo");
    message.set_request_id("id");
    v1::Tensor& states = *message.mutable_hidden_states();
    states.set_dtype(v1::F32);
    states.add_shape(tokens);
    states.add_shape(kDModel);
    states.mutable_data()->resize(static_cast<size_t>(tokens * kDModel) *
                                  sizeof(float));
    const grpc::Slice slice(message.SerializeAsString());
    MOE_ASSERT_OK(
        request->Prepare(grpc::ByteBuffer(&slice, 1), registry_, kLimits));
  }

  static std::string Answer(OfflineRequest& request) {
    grpc::Slice slice;
    EXPECT_TRUE(request.TakeAnswer().DumpToSingleSlice(&slice).ok());
    return std::string(slice.begin(), slice.end());
  }

  Executor executor_{1};
  ExpertWorkspace workspace_{&executor_};
  ModelRegistry registry_;
};

TEST_F(WireRequestTest, TimingTakesItsTwentyBytesHoweverLittleItIs) {
  const std::string zero(sizeof(double), '\0');
  const std::string timing = "\x32\x12\x09" + zero + "\x11" + zero;
  const std::string output(
      "\x12\x09"
      "\x08\x01"              // F32
      "\x12\x03\x00\x80\x02"  // [0, 256]
      "\x1a\x00",             // no data
      11);
  const std::string want = "\x0a\x02id" + timing + output;

  OfflineRequest unary;
  Prepare(0, &unary);
  unary.Encode(0, {});
  EXPECT_EQ(Answer(unary), want);

  OfflineRequest streamed{OfflineRequest::Streamed()};
  Prepare(0, &streamed);
  streamed.Encode(0, {});
  EXPECT_EQ(Answer(streamed), FieldHead(1, want.size()) + want);
}

TEST_F(WireRequestTest, TimingIsThatOfAllPartsOfTheRows) {
  Metrics metrics;
  Engine engine({.batching = {.max_batch_tokens = 16}}, &workspace_, &metrics);
  OfflineRequest request;
  Prepare(40, &request);
  MOE_ASSERT_OK(engine.Submit(&request));
  request.Wait();
  v1::ForwardResponse answer;
  ASSERT_TRUE(answer.ParseFromString(Answer(request)));
  EXPECT_EQ(answer.request_id(), "id");
  EXPECT_EQ(answer.output().data().size(), 40 * kDModel * sizeof(float));
  using Seconds = std::chrono::duration<double>;
  EXPECT_EQ(answer.timing().queue_seconds(),
            Seconds(request.timing().queued).count());
  EXPECT_EQ(answer.timing().compute_seconds(),
            Seconds(request.timing().computed).count());
  EXPECT_GT(answer.timing().compute_seconds(), 0);
}

}  // namespace
}  // namespace moe
