// What a shard is asked, and how it responds, as bytes.

#include "server/shards/shard_request.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "experts/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/models/model.h"
#include "server/shards/shard_message.h"
#include "server/wire/tensor_codec.h"
#include "tests/testing/reference_moe.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kDModel = 256;  // of the demo model
constexpr ServiceLimits kLimits = {.max_message_bytes = 1 << 20,
                                   .max_request_tokens = 64};

grpc::ByteBuffer ToBytes(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

class ShardRequestTest : public ::testing::Test {
 protected:
  ShardRequestTest() {
    // The experts 2, 5 and 6 of the demo model, and all of it.
    LoadOptions options;
    options.part.held_experts = [](const LayerSpec&) {
      return std::vector<int32_t>{2, 5, 6};
    };
    Publish("shard", options);
    Publish("whole", {});
    const ModelLayer& held = Layer("shard");
    layer_ = {.model = "shard",
              .layer = 0,
              .expert = held.ffn->expert_spec(),
              .fingerprints = std::vector<uint64_t>(16),
              .local_ids = {}};
    for (size_t i = 0; i < held.held_experts.size(); ++i) {
      layer_.fingerprints[static_cast<size_t>(held.held_experts[i])] =
          held.fingerprints[i];
    }
  }

  void Publish(const std::string& name, const LoadOptions& options) {
    auto served = std::make_shared<ServedModel>();
    served->name = name;
    served->model = *LoadDemoModel(options, executor_);
    served->layer_metrics.resize(served->model->layers().size());
    registry_.Publish(std::move(served));
  }
  const ModelLayer& Layer(const std::string& name) {
    return *registry_.FindLayer(name, 0)->layer;
  }

  absl::StatusOr<ParsedRequest> Parse(const grpc::ByteBuffer& message) const {
    RequestLabel label;
    return ParseForwardExperts(
        message,
        {.registry = registry_, .limits = kLimits, .now = SteadyTime()},
        &label);
  }

  // Tokens 0 and 2 to expert 2, token 2 to expert 6.
  ExpertBatch Batch() const {
    return {.hidden_states = ConstMatrix(x_.data(), 3, kDModel),
            .offsets = offsets_,
            .rows = rows_,
            .input_scales = {}};
  }
  shards::ForwardExpertsRequest GoodRequest() {
    const grpc::ByteBuffer bytes =
        ShardRequestWriter().Write(layer_, Batch(), {2, 6}, v1::F32);
    grpc::Slice slice;
    EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
    shards::ForwardExpertsRequest request;
    EXPECT_TRUE(
        request.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    return request;
  }

  Executor executor_{1};
  ModelRegistry registry_;
  SpreadLayer layer_;
  const std::vector<float> x_ = RandomFloats(3 * kDModel, 1.0F, 1);
  const std::vector<int32_t> offsets_ = {0, 0, 0, 2, 2, 2, 2, 3, 3,
                                         3, 3, 3, 3, 3, 3, 3, 3};
  const std::vector<int32_t> rows_ = {0, 2, 2};
};

TEST_F(ShardRequestTest, RowsAreSentOnceAndNamedByEachExpert) {
  const shards::ForwardExpertsRequest request = GoodRequest();
  EXPECT_EQ(request.model(), "shard");
  EXPECT_THAT(request.experts(), ElementsAre(2, 6));
  EXPECT_THAT(request.row_counts(), ElementsAre(2, 1));
  EXPECT_THAT(request.rows(), ElementsAre(0, 1, 1));
  EXPECT_THAT(request.hidden_states().shape(), ElementsAre(2, kDModel));
  EXPECT_EQ(request.input_scales_size(), 0);
}

TEST_F(ShardRequestTest, BecomesTokensWithOneExpertEach) {
  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest request,
                           Parse(ToBytes(GoodRequest())));
  EXPECT_EQ(request.call.tokens, 3);
  EXPECT_EQ(request.call.given_k, 1);
  EXPECT_FALSE(request.call.route_only());
  std::vector<float> states(3 * kDModel);
  std::vector<int32_t> ids(3);
  std::vector<float> weights(3);
  request.codec->Decode(0, Matrix(states.data(), 3, kDModel));
  request.codec->DecodeRouting(0, MatrixView<int32_t>(ids.data(), 3, 1),
                               Matrix(weights.data(), 3, 1));
  EXPECT_THAT(ids, ElementsAre(2, 2, 6));
  EXPECT_THAT(weights, ElementsAre(1, 1, 1));
  for (size_t i = 0; i < rows_.size(); ++i) {
    EXPECT_TRUE(
        std::equal(states.begin() + static_cast<int64_t>(i) * kDModel,
                   states.begin() + (static_cast<int64_t>(i) + 1) * kDModel,
                   x_.begin() + rows_[i] * kDModel));
  }

  // The response, encoded in two parts, finds its places.
  const EngineResult first{.output = ConstMatrix(states.data(), 2, kDModel),
                           .routing = {},
                           .router_logits = {}};
  const EngineResult last{
      .output = ConstMatrix(states.data() + 2 * kDModel, 1, kDModel),
      .routing = {},
      .router_logits = {}};
  request.codec->LayOut();
  request.codec->Encode(0, first);
  request.codec->Encode(2, last);
  std::vector<float> out(3 * kDModel);
  MOE_ASSERT_OK(ReadShardResponse(request.response->Take(), Batch(), {2, 6},
                                  Matrix(out.data(), 3, kDModel)));
  EXPECT_EQ(out, states);
}

TEST_F(ShardRequestTest, InputScalesTravel) {
  ExpertBatch batch = Batch();
  const std::vector<float> scales = {0.5F, 2.0F, -1.0F};
  batch.input_scales = scales;
  MOE_ASSERT_OK_AND_ASSIGN(
      const ParsedRequest request,
      Parse(ShardRequestWriter().Write(layer_, batch, {2, 6}, v1::BF16)));
  std::vector<int32_t> ids(3);
  std::vector<float> weights(3);
  request.codec->DecodeRouting(0, MatrixView<int32_t>(ids.data(), 3, 1),
                               Matrix(weights.data(), 3, 1));
  EXPECT_EQ(weights, scales);
}

TEST_F(ShardRequestTest, WhatIsWrongIsNamed) {
  using Request = shards::ForwardExpertsRequest;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  struct Case {
    std::function<void(Request&)> change;
    absl::StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {[](Request& r) { r.set_model("none"); }, absl::StatusCode::kNotFound,
       "model"},
      {[](Request& r) { r.set_layer(9); }, absl::StatusCode::kNotFound,
       "layer"},
      {[](Request& r) { r.set_model("whole"); }, kRefused,
       "model: this server is no shard"},
      {[](Request& r) { r.set_experts(1, 7); }, kRefused,
       "experts: want some that the shard holds, got 7"},
      {[](Request& r) { r.set_experts(0, -1); }, kInvalid,
       "experts: want ascending ids, got -1"},
      {[](Request& r) { r.set_experts(1, 2); }, kInvalid,
       "experts: want ascending ids, got 2 after 2"},
      {[](Request& r) { r.set_fingerprints(1, 1); }, kRefused,
       "fingerprints: expert 6 of layer 0 is another one here"},
      {[](Request& r) { r.add_fingerprints(1); }, kInvalid,
       "fingerprints: want one for each of 2 experts, got 3"},
      {[](Request& r) { r.clear_row_counts(); }, kInvalid,
       "row_counts: want one for each of 2 experts, got 0"},
      {[](Request& r) { r.set_row_counts(0, 0); }, kInvalid,
       "row_counts: want at least 1, got 0"},
      {[](Request& r) { r.set_row_counts(0, 2147483647); }, kInvalid,
       "rows: want the sum of row_counts, 2147483648, got 3"},
      {[](Request& r) { r.add_rows(0); }, kInvalid,
       "rows: want the sum of row_counts, 3, got 4"},
      {[](Request& r) { r.set_rows(1, 2); }, kInvalid,
       "rows: want 0 to 1, rows of hidden_states, got 2"},
      {[](Request& r) { r.set_rows(1, -1); }, kInvalid, "rows: want 0 to 1"},
      {[](Request& r) { r.add_input_scales(1); }, kInvalid,
       "input_scales: want none or one for each of 3 rows, got 1"},
      {[](Request& r) { r.clear_hidden_states(); }, kInvalid, "hidden_states"},
      {[](Request& r) { r.mutable_hidden_states()->set_shape(1, 255); },
       kInvalid, "hidden_states.shape"},
      {[](Request& r) {
         r.mutable_hidden_states()->mutable_data()->pop_back();
       },
       kInvalid, "hidden_states.data"},
      {[](Request& r) { r.set_output_dtype(v1::I32); },
       absl::StatusCode::kUnimplemented,
       "output_dtype: want F32, BF16 or F16, got I32"},
      {[](Request& r) { r.set_output_dtype(static_cast<v1::DType>(17)); },
       kInvalid, "output_dtype: want F32, BF16 or F16, got 17"},
      {[](Request& r) {
         for (int i = 0; i < 1100; ++i) r.add_rows(0);
         r.set_row_counts(1, 1101);
       },
       kInvalid, "rows: want an answer of at most 1048576 bytes"},
      // Far more than can be right are not even read.
      {[](Request& r) {
         for (int i = 0; i < 10'000; ++i) r.add_experts(1);
       },
       kInvalid, "experts: want at most 15 bytes here, got 10002"},
      {[](Request& r) {
         for (int i = 0; i < 10'000; ++i) r.add_fingerprints(1);
       },
       kInvalid, "fingerprints: want at most 24 bytes here, got 80016"},
      {[](Request& r) {
         for (int i = 0; i < 10'000; ++i) r.add_row_counts(1);
       },
       kInvalid, "row_counts: want at most 15 bytes here, got 10002"},
      {[](Request& r) {
         for (int i = 0; i < 10'000; ++i) r.add_rows(1);
       },
       kInvalid, "rows: want at most 5120 bytes here, got 10003"},
      {[](Request& r) {
         for (int i = 0; i < 10'000; ++i) r.add_input_scales(1);
       },
       kInvalid, "input_scales: want at most 4096 bytes here, got 40000"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    Request request = GoodRequest();
    c.change(request);
    EXPECT_THAT(Parse(ToBytes(request)).status(),
                StatusIs(c.code, HasSubstr(c.message)));
  }
  const grpc::Slice garbage("\x0a\xff garbage");
  EXPECT_THAT(
      Parse(grpc::ByteBuffer(&garbage, 1)).status(),
      StatusIs(kInvalid, HasSubstr("want a moe.shards.ForwardExpertsRequest")));
}

TEST_F(ShardRequestTest, ListsComeOnceAndPacked) {
  const std::string good = GoodRequest().SerializeAsString();
  for (const std::string& more :
       {std::string("\x30\x00", 2), std::string("\x32\x01\x00", 3)}) {
    const grpc::Slice slice(good + more);
    EXPECT_THAT(Parse(grpc::ByteBuffer(&slice, 1)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("want each as one packed list")));
  }
  // Malformed: a number that does not end.
  const grpc::Slice slice(std::string("\x0a\x05shard\x32\x01\xff") +
                          good.substr(good.find('\x42')));
  EXPECT_THAT(
      Parse(grpc::ByteBuffer(&slice, 1)).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("want a moe.shards.ForwardExpertsRequest message")));
}

TEST_F(ShardRequestTest, NoExpertsMeansNoTokens) {
  shards::ForwardExpertsRequest request = GoodRequest();
  request.clear_experts();
  request.clear_fingerprints();
  request.clear_row_counts();
  request.clear_rows();
  MOE_ASSERT_OK_AND_ASSIGN(const ParsedRequest parsed, Parse(ToBytes(request)));
  EXPECT_EQ(parsed.call.tokens, 0);
}

}  // namespace
}  // namespace moe
