#include "server/open_inference/inference_service.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "inference/inference.grpc.pb.h"
#include "moe/v1/moe.grpc.pb.h"
#include "server/server.h"
#include "server/wire/grpc_status.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kDModel = 256;  // of the demo model
constexpr int kDense = 2;         // its dense layer

ServerOptions DemoOptions() {
  ServerOptions options;
  options.demo = true;
  options.listen_address = "127.0.0.1:0";
  options.metrics_address = "";
  options.num_compute_threads = 1;
  return options;
}

std::vector<float> Rows(int64_t tokens) {
  std::vector<float> rows(static_cast<size_t>(tokens * kDModel));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(std::sin(0.1 * static_cast<double>(i)));
  }
  return rows;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
}

ModelInferRequest::InferInputTensor* AddInput(ModelInferRequest* request,
                                              const std::string& name,
                                              const std::string& datatype,
                                              int64_t rows, int64_t cols) {
  auto* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->add_shape(rows);
  input->add_shape(cols);
  return input;
}

ModelInferRequest Request(int64_t tokens, int layer = 0) {
  ModelInferRequest request;
  request.set_model_name(absl::StrCat("demo.layers.", layer));
  AddInput(&request, "hidden_states", "FP32", tokens, kDModel);
  request.add_raw_input_contents(BytesOf(Rows(tokens)));
  return request;
}

// With the routing of the demo model's experts 0 and 1 for every token.
ModelInferRequest RoutedRequest(int64_t tokens) {
  ModelInferRequest request = Request(tokens);
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int64_t t = 0; t < tokens; ++t) {
    for (const int32_t id : {0, 1}) ids.push_back(id);
    for (const float weight : {0.5F, 0.25F}) weights.push_back(weight);
  }
  AddInput(&request, "expert_ids", "INT32", tokens, 2);
  request.add_raw_input_contents(BytesOf(ids));
  AddInput(&request, "routing_weights", "FP32", tokens, 2);
  request.add_raw_input_contents(BytesOf(weights));
  return request;
}

class InferenceServiceTest : public ::testing::Test {
 protected:
  void Start(const ServerOptions& options = DemoOptions()) {
    MOE_ASSERT_OK_AND_ASSIGN(server_, Server::Start(options));
    const auto channel = grpc::CreateChannel(
        server_->grpc_address(), grpc::InsecureChannelCredentials());
    stub_ = inference::GRPCInferenceService::NewStub(channel);
    moe_stub_ = v1::MoeService::NewStub(channel);
  }

  template <typename Req, typename Response>
  using Rpc = grpc::Status (inference::GRPCInferenceService::Stub::*)(
      grpc::ClientContext*, const Req&, Response*);

  template <typename Req, typename Response>
  absl::StatusOr<Response> Call(Rpc<Req, Response> rpc, const Req& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(60));
    Response response;
    const grpc::Status status = ((*stub_).*rpc)(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  absl::StatusOr<ModelInferResponse> Infer(const ModelInferRequest& request) {
    return Call(&inference::GRPCInferenceService::Stub::ModelInfer, request);
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
  std::unique_ptr<v1::MoeService::Stub> moe_stub_;
};

// The same request to moe.v1.
v1::ForwardRequest ToForward(const ModelInferRequest& request, int layer) {
  v1::ForwardRequest forward;
  forward.set_model("demo");
  forward.set_layer(layer);
  forward.set_return_routing(true);
  for (int i = 0; i < request.inputs_size(); ++i) {
    const auto& input = request.inputs(i);
    v1::Tensor& tensor =
        input.name() == "hidden_states" ? *forward.mutable_hidden_states()
        : input.name() == "expert_ids"  ? *forward.mutable_expert_ids()
                                        : *forward.mutable_routing_weights();
    tensor.set_dtype(input.datatype() == "BF16"    ? v1::BF16
                     : input.datatype() == "FP16"  ? v1::F16
                     : input.datatype() == "INT32" ? v1::I32
                                                   : v1::F32);
    *tensor.mutable_shape() = input.shape();
    tensor.set_data(request.raw_input_contents(i));
  }
  return forward;
}

TEST_F(InferenceServiceTest, AnswersWithTheBytesOfForward) {
  Start();
  ModelInferRequest sixteen = Request(5);
  sixteen.mutable_inputs(0)->set_datatype("BF16");
  sixteen.mutable_raw_input_contents(0)->resize(5 * kDModel * 2);
  ModelInferRequest half = sixteen;
  half.mutable_inputs(0)->set_datatype("FP16");
  for (const auto& [request, layer] : {std::pair(Request(3), 0),
                                       {Request(1, 1), 1},
                                       {Request(7, kDense), kDense},
                                       {Request(0), 0},
                                       {RoutedRequest(4), 0},
                                       {sixteen, 0},
                                       {half, 0}}) {
    MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse got, Infer(request));
    grpc::ClientContext context;
    v1::ForwardResponse want;
    ASSERT_TRUE(
        moe_stub_->Forward(&context, ToForward(request, layer), &want).ok());
    EXPECT_EQ(got.raw_output_contents(0), want.output().data());
    EXPECT_EQ(got.outputs(0).name(), "output");
    EXPECT_EQ(got.outputs(0).datatype(), request.inputs(0).datatype());
    EXPECT_THAT(got.outputs(0).shape(),
                ElementsAre(request.inputs(0).shape(0), kDModel));
    ASSERT_EQ(got.raw_output_contents_size(), layer == kDense ? 1 : 3);
    ASSERT_EQ(got.outputs_size(), got.raw_output_contents_size());
    if (layer == kDense) continue;
    EXPECT_EQ(got.outputs(1).name(), "expert_ids");
    EXPECT_EQ(got.outputs(1).datatype(), "INT32");
    EXPECT_EQ(got.raw_output_contents(1), want.expert_ids().data());
    EXPECT_EQ(got.outputs(2).name(), "routing_weights");
    EXPECT_EQ(got.outputs(2).datatype(), "FP32");
    EXPECT_EQ(got.raw_output_contents(2), want.routing_weights().data());
  }
}

TEST_F(InferenceServiceTest, TypedContentsAreAsGoodAsRawOnes) {
  Start();
  const ModelInferRequest raw = RoutedRequest(3);
  ModelInferRequest typed = raw;
  typed.clear_raw_input_contents();
  for (const float value : Rows(3)) {
    typed.mutable_inputs(0)->mutable_contents()->add_fp32_contents(value);
  }
  for (int t = 0; t < 3; ++t) {
    auto& ids = *typed.mutable_inputs(1)->mutable_contents();
    ids.add_int_contents(0);
    ids.add_int_contents(1);
    auto& weights = *typed.mutable_inputs(2)->mutable_contents();
    weights.add_fp32_contents(0.5F);
    weights.add_fp32_contents(0.25F);
  }
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse want, Infer(raw));
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse got, Infer(typed));
  EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString());
}

TEST_F(InferenceServiceTest, ReturnsIdModelAndVersion) {
  Start();
  ModelInferRequest request = Request(1);
  request.set_id("batch 7");
  request.set_model_version("1");
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse response, Infer(request));
  EXPECT_EQ(response.id(), "batch 7");
  EXPECT_EQ(response.model_name(), "demo.layers.0");
  EXPECT_EQ(response.model_version(), "1");
}

TEST_F(InferenceServiceTest, TakesTheLayerAsAParameter) {
  Start();
  ModelInferRequest request = Request(2, 1);
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse want, Infer(request));
  request.set_model_name("demo");
  auto& parameter = (*request.mutable_parameters())["layer"];
  parameter.set_int64_param(1);
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse got, Infer(request));
  EXPECT_EQ(got.model_name(), "demo");
  EXPECT_EQ(got.raw_output_contents(0), want.raw_output_contents(0));
  parameter.set_uint64_param(1);
  MOE_EXPECT_OK(Infer(request));
  request.set_model_name("demo.layers.1");
  MOE_EXPECT_OK(Infer(request)) << "the same layer twice";
}

TEST_F(InferenceServiceTest, ReturnsTheOutputsThatWereAskedForInTheirOrder) {
  Start();
  ModelInferRequest request = Request(2);
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse all, Infer(request));
  request.add_outputs()->set_name("routing_weights");
  request.add_outputs()->set_name("output");
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse two, Infer(request));
  EXPECT_THAT(
      two.raw_output_contents(),
      ElementsAre(all.raw_output_contents(2), all.raw_output_contents(0)));
  request.clear_outputs();
  request.add_outputs()->set_name("expert_ids");
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse ids, Infer(request));
  EXPECT_THAT(ids.raw_output_contents(),
              ElementsAre(all.raw_output_contents(1)));
  EXPECT_EQ(ids.outputs(0).name(), "expert_ids");
}

TEST_F(InferenceServiceTest, RoundsToTheDatatypeAskedFor) {
  Start();
  ModelInferRequest request = Request(2);
  (*request.mutable_parameters())["output_datatype"].set_string_param("BF16");
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse response, Infer(request));
  EXPECT_EQ(response.outputs(0).datatype(), "BF16");
  EXPECT_EQ(response.raw_output_contents(0).size(), 2 * kDModel * 2);
}

TEST_F(InferenceServiceTest, IgnoresParametersAndFieldsThatItDoesNotKnow) {
  Start();
  ModelInferRequest request = Request(1);
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse want, Infer(request));
  (*request.mutable_parameters())["priority"].set_uint64_param(1);
  (*request.mutable_parameters())["sequence_id"].set_int64_param(5);
  (*request.mutable_inputs(0)->mutable_parameters())["x"].set_bool_param(true);
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(1000, 1);
  MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse got, Infer(request));
  EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString());
}

TEST_F(InferenceServiceTest, TimeoutIsADeadline) {
  Start();
  ModelInferRequest request = Request(1);
  auto& timeout = (*request.mutable_parameters())["timeout"];
  timeout.set_int64_param(60'000'000);
  MOE_EXPECT_OK(Infer(request));
  timeout.set_int64_param(std::numeric_limits<int64_t>::max());
  MOE_EXPECT_OK(Infer(request));
  // No time at all: a microsecond passes before the engine asks.
  request = Request(2000);
  (*request.mutable_parameters())["timeout"].set_int64_param(1);
  EXPECT_THAT(Infer(request), StatusIs(absl::StatusCode::kDeadlineExceeded, _));
}

struct Malformed {
  const char* name;
  std::function<void(ModelInferRequest&)> spoil;  // a RoutedRequest(2)
  const char* message;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

class MalformedTest : public InferenceServiceTest,
                      public ::testing::WithParamInterface<Malformed> {};

TEST_P(MalformedTest, IsRefusedByName) {
  Start();
  ModelInferRequest request = RoutedRequest(2);
  MOE_ASSERT_OK(Infer(request));
  GetParam().spoil(request);
  EXPECT_THAT(Infer(request),
              StatusIs(GetParam().code, HasSubstr(GetParam().message)));
  MOE_EXPECT_OK(Infer(RoutedRequest(2)));
}

void SetShape(ModelInferRequest& request, std::vector<int64_t> shape,
              int input = 0) {
  auto& to = *request.mutable_inputs(input)->mutable_shape();
  to.Assign(shape.begin(), shape.end());
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedTest,
    ::testing::Values(
        Malformed{"NegativeShape",
                  [](auto& r) {
                    SetShape(r, {-1, kDModel});
                  },
                  "hidden_states.shape: want [tokens, 256], got [-1, 256]"},
        Malformed{"NegativeColumns",
                  [](auto& r) {
                    SetShape(r, {2, -kDModel});
                  },
                  "hidden_states.shape: want"},
        Malformed{"HugeShape",
                  [](auto& r) {
                    SetShape(r, {int64_t{1} << 62, int64_t{1} << 62});
                  },
                  "hidden_states.shape: want"},
        Malformed{"ManyTokens",
                  [](auto& r) {
                    SetShape(r, {int64_t{1} << 62, kDModel});
                  },
                  "hidden_states.shape: want at most"},
        Malformed{"NoShape", [](auto& r) { SetShape(r, {}); },
                  "hidden_states.shape: want"},
        Malformed{"ThreeDimensions",
                  [](auto& r) {
                    SetShape(r, {1, 2, kDModel});
                  },
                  "hidden_states.shape: want"},
        Malformed{"NegativeIdsShape",
                  [](auto& r) {
                    SetShape(r, {2, -2}, 1);
                  },
                  "expert_ids.shape: want"},
        Malformed{"WeightsOfAnotherShape",
                  [](auto& r) {
                    SetShape(r, {2, 3}, 2);
                  },
                  "routing_weights.shape: want [2, 2], got [2, 3]"},
        Malformed{"ByteMissing",
                  [](auto& r) { r.mutable_raw_input_contents(0)->pop_back(); },
                  "hidden_states.data: want 2048 bytes"},
        Malformed{
            "ByteTooMany",
            [](auto& r) { r.mutable_raw_input_contents(2)->push_back(0); },
            "routing_weights.data: want 16 bytes"},
        Malformed{"RawMissing",
                  [](auto& r) { r.mutable_raw_input_contents()->RemoveLast(); },
                  "for each of 3 inputs, got 2: none for routing_weights"},
        Malformed{"RawTooMany", [](auto& r) { r.add_raw_input_contents(BytesOf<char>({0})); },
                  "for each of 3 inputs, got 4: some after that of "
                  "routing_weights"},
        Malformed{"NoDataAtAll", [](auto& r) { r.clear_raw_input_contents(); },
                  "hidden_states.data: want 2048 bytes"},
        Malformed{"RawAndTyped",
                  [](auto& r) {
                    r.mutable_inputs(1)->mutable_contents()->add_int_contents(
                        0);
                  },
                  "expert_ids.contents: want none beside raw_input_contents"},
        Malformed{"ContentsOfAnotherType",
                  [](auto& r) {
                    r.clear_raw_input_contents();
                    r.mutable_inputs(0)->mutable_contents()->add_fp64_contents(
                        0);
                  },
                  "hidden_states.contents: want fp32_contents"},
        Malformed{"TwoKindsOfContents",
                  [](auto& r) {
                    r.clear_raw_input_contents();
                    auto& contents = *r.mutable_inputs(0)->mutable_contents();
                    contents.add_fp32_contents(0);
                    contents.add_int_contents(0);
                  },
                  "hidden_states.contents: want fp32_contents alone"},
        Malformed{"TooFewElements",
                  [](auto& r) {
                    r.clear_raw_input_contents();
                    r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(
                        0);
                  },
                  "hidden_states.data: want 2048 bytes for [2, 256] of F32, "
                  "got 4"},
        Malformed{"TypedBf16",
                  [](auto& r) {
                    r.clear_raw_input_contents();
                    r.mutable_inputs(0)->set_datatype("BF16");
                    r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(
                        0);
                  },
                  "hidden_states.contents: want raw_input_contents for BF16"},
        Malformed{"WrongDatatype",
                  [](auto& r) { r.mutable_inputs(0)->set_datatype("INT8"); },
                  "hidden_states.datatype: want FP32, FP16, BF16; got "
                  "\"INT8\""},
        Malformed{"IntegerStates",
                  [](auto& r) { r.mutable_inputs(0)->set_datatype("INT32"); },
                  "hidden_states.datatype: want"},
        Malformed{"NoDatatype",
                  [](auto& r) { r.mutable_inputs(2)->clear_datatype(); },
                  "routing_weights.datatype: want FP32; got \"\""},
        Malformed{"LongIds",
                  [](auto& r) { r.mutable_inputs(1)->set_datatype("INT64"); },
                  "expert_ids.datatype: want INT32"},
        Malformed{"UnknownInput",
                  [](auto& r) { r.mutable_inputs(0)->set_name("INPUT0"); },
                  "got \"INPUT0\""},
        Malformed{
            "DuplicateInput",
            [](auto& r) { r.mutable_inputs(1)->set_name("hidden_states"); },
            "inputs: want hidden_states once"},
        Malformed{"NoInputs",
                  [](auto& r) {
                    r.clear_inputs();
                    r.clear_raw_input_contents();
                  },
                  "inputs: want hidden_states, got none"},
        Malformed{"HalfOfARouting",
                  [](auto& r) {
                    r.mutable_inputs()->RemoveLast();
                    r.mutable_raw_input_contents()->RemoveLast();
                  },
                  "routing_weights: want them with expert_ids"},
        Malformed{"RoutingOfADenseLayer",
                  [](auto& r) { r.set_model_name("demo.layers.2"); },
                  "expert_ids: want none, layer 2 is dense"},
        Malformed{"IdOutOfRange",
                  [](auto& r) { (*r.mutable_raw_input_contents(1))[4] = 16; },
                  "expert_ids.data: want -1 to 15, got 16 at [0, 1]"},
        Malformed{"DuplicateIds",
                  [](auto& r) { (*r.mutable_raw_input_contents(1))[4] = 0; },
                  "expert_ids.data: want distinct experts"},
        Malformed{"UnknownOutput",
                  [](auto& r) { r.add_outputs()->set_name("OUTPUT0"); },
                  "outputs: want output, expert_ids, routing_weights; got "
                  "\"OUTPUT0\""},
        Malformed{"DuplicateOutput",
                  [](auto& r) {
                    r.add_outputs()->set_name("output");
                    r.add_outputs()->set_name("output");
                  },
                  "outputs: want output once"},
        Malformed{"RoutingOfADenseLayerAskedFor",
                  [](auto& r) {
                    r = Request(2, kDense);
                    r.add_outputs()->set_name("expert_ids");
                  },
                  "outputs: want output; got \"expert_ids\""},
        Malformed{"LayerOfAnotherType",
                  [](auto& r) {
                    (*r.mutable_parameters())["layer"].set_string_param("0");
                  },
                  "parameters.layer: want an int64_param"},
        Malformed{"LayerThatIsNotThatOfTheName",
                  [](auto& r) {
                    (*r.mutable_parameters())["layer"].set_int64_param(1);
                  },
                  "parameters.layer: want none, or 0 as in the model_name"},
        Malformed{"NoLayer", [](auto& r) { r.set_model_name("demo"); },
                  "parameters.layer: want the index of a layer"},
        Malformed{
            "UnsupportedOutputDatatype",
            [](auto& r) {
              (*r.mutable_parameters())["output_datatype"].set_string_param(
                  "INT32");
            },
            "parameters.output_datatype: want FP32, FP16, BF16, got \"INT32\"",
            absl::StatusCode::kUnimplemented},
        Malformed{
            "OutputDatatypeOfTheProtocolAlone",
            [](auto& r) {
              (*r.mutable_parameters())["output_datatype"].set_string_param(
                  "FP64");
            },
            "parameters.output_datatype: want FP32, FP16, BF16, got \"FP64\"",
            absl::StatusCode::kUnimplemented},
        Malformed{
            "NoSuchOutputDatatype",
            [](auto& r) {
              (*r.mutable_parameters())["output_datatype"].set_string_param(
                  "F32");
            },
            "parameters.output_datatype: want FP32, FP16, BF16, got \"F32\""},
        Malformed{"NegativeTimeout",
                  [](auto& r) {
                    (*r.mutable_parameters())["timeout"].set_int64_param(-1);
                  },
                  "parameters.timeout: want microseconds"},
        Malformed{"LongId", [](auto& r) { r.set_id(std::string(129, 'x')); },
                  "request_id: want at most 128 bytes"},
        Malformed{"NoSuchModel", [](auto& r) { r.set_model_name("nobody"); },
                  "model: no model named \"nobody\"",
                  absl::StatusCode::kNotFound},
        Malformed{
            "NoSuchLayer", [](auto& r) { r.set_model_name("demo.layers.7"); },
            "layer: want one of 0, 1, 2; got 7", absl::StatusCode::kNotFound},
        Malformed{"NoSuchLayerParameter",
                  [](auto& r) {
                    r.set_model_name("demo");
                    (*r.mutable_parameters())["layer"].set_int64_param(
                        int64_t{1} << 32);
                  },
                  "layer: want one of 0, 1, 2", absl::StatusCode::kNotFound},
        Malformed{"NoSuchVersion", [](auto& r) { r.set_model_version("2"); },
                  "model_version: want \"1\" or none, got \"2\"",
                  absl::StatusCode::kNotFound},
        Malformed{"SharedMemory",
                  [](auto& r) {
                    (*r.mutable_inputs(0)
                          ->mutable_parameters())["shared_memory_region"]
                        .set_string_param("x");
                  },
                  "shared_memory_region is not supported",
                  absl::StatusCode::kUnimplemented},
        Malformed{
            "Classification",
            [](auto& r) {
              auto& output = *r.add_outputs();
              output.set_name("output");
              (*output.mutable_parameters())["classification"].set_int64_param(
                  3);
            },
            "classification is not supported",
            absl::StatusCode::kUnimplemented}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(InferenceServiceTest, StreamAnswersInOrderAndSurvivesBadRequests) {
  Start();
  constexpr int kRequests = 100;  // more than a stream keeps in flight
  grpc::ClientContext context;
  auto stream = stub_->ModelStreamInfer(&context);
  std::thread writer([&] {
    for (int i = 0; i < kRequests; ++i) {
      ModelInferRequest request = Request(i % 5, i % 3);
      request.set_id(absl::StrCat(i));
      if (i % 7 == 3) request.mutable_inputs(0)->set_datatype("INT8");
      if (i % 2 == 0) {
        (*request.mutable_parameters())["triton_enable_empty_final_response"]
            .set_bool_param(true);
      }
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  inference::ModelStreamInferResponse response;
  int responses = 0;
  for (; stream->Read(&response); ++responses) {
    EXPECT_EQ(response.infer_response().id(), absl::StrCat(responses));
    if (responses % 7 == 3) {
      EXPECT_THAT(response.error_message(),
                  HasSubstr("INVALID_ARGUMENT: hidden_states.datatype: want"));
      EXPECT_THAT(response.infer_response().outputs(), IsEmpty());
      continue;
    }
    EXPECT_EQ(response.error_message(), "");
    MOE_ASSERT_OK_AND_ASSIGN(const ModelInferResponse want,
                             Infer(Request(responses % 5, responses % 3)));
    EXPECT_EQ(response.infer_response().raw_output_contents(0),
              want.raw_output_contents(0));
    const auto& parameters = response.infer_response().parameters();
    ASSERT_EQ(parameters.count("triton_final_response"), responses % 2 == 0);
    if (responses % 2 == 0) {
      EXPECT_TRUE(parameters.at("triton_final_response").bool_param());
    }
  }
  writer.join();
  EXPECT_EQ(responses, kRequests);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(InferenceServiceTest, ReportsLivenessAndReadiness) {
  Start();
  using Stub = inference::GRPCInferenceService::Stub;
  MOE_ASSERT_OK_AND_ASSIGN(const auto live, Call(&Stub::ServerLive, {}));
  EXPECT_TRUE(live.live());
  MOE_ASSERT_OK_AND_ASSIGN(const auto ready, Call(&Stub::ServerReady, {}));
  EXPECT_TRUE(ready.ready());
  const auto model_ready = [&](const char* name, const char* version) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    const auto response = Call(&Stub::ModelReady, request);
    MOE_EXPECT_OK(response);
    return response.ok() && response->ready();
  };
  EXPECT_TRUE(model_ready("demo", ""));
  EXPECT_TRUE(model_ready("demo", "1"));
  EXPECT_TRUE(model_ready("demo.layers.2", ""));
  EXPECT_FALSE(model_ready("demo", "2"));
  EXPECT_FALSE(model_ready("demo.layers.3", ""));
  EXPECT_FALSE(model_ready("nobody", ""));
}

TEST_F(InferenceServiceTest, DescribesServerAndModels) {
  Start();
  using Stub = inference::GRPCInferenceService::Stub;
  MOE_ASSERT_OK_AND_ASSIGN(const auto server, Call(&Stub::ServerMetadata, {}));
  EXPECT_EQ(server.name(), "moe-server");
  EXPECT_THAT(server.version(), ::testing::Not(IsEmpty()));

  inference::ModelMetadataRequest request;
  request.set_name("demo");
  MOE_ASSERT_OK_AND_ASSIGN(const auto model,
                           Call(&Stub::ModelMetadata, request));
  EXPECT_EQ(model.name(), "demo");
  EXPECT_THAT(model.versions(), ElementsAre("1"));
  ASSERT_EQ(model.inputs_size(), 3);
  EXPECT_EQ(model.inputs(0).name(), "hidden_states");
  EXPECT_EQ(model.inputs(0).datatype(), "FP32");
  EXPECT_THAT(model.inputs(0).shape(), ElementsAre(-1, kDModel));
  EXPECT_EQ(model.inputs(1).name(), "expert_ids");
  EXPECT_EQ(model.inputs(1).datatype(), "INT32");
  EXPECT_THAT(model.inputs(1).shape(), ElementsAre(-1, -1));
  EXPECT_EQ(model.inputs(2).name(), "routing_weights");
  ASSERT_EQ(model.outputs_size(), 3);
  EXPECT_EQ(model.outputs(0).name(), "output");
  EXPECT_EQ(model.properties().at("layers"), "0,1,2");
  EXPECT_EQ(model.properties().at("family"), "demo");

  request.set_name("demo.layers.0");
  MOE_ASSERT_OK_AND_ASSIGN(const auto layer,
                           Call(&Stub::ModelMetadata, request));
  EXPECT_EQ(layer.inputs_size(), 1) << "those that it needs";
  EXPECT_EQ(layer.outputs_size(), 3);
  EXPECT_EQ(layer.properties().at("layers"), "0");

  request.set_name("demo.layers.2");
  MOE_ASSERT_OK_AND_ASSIGN(const auto dense,
                           Call(&Stub::ModelMetadata, request));
  EXPECT_EQ(dense.inputs_size(), 1);
  EXPECT_EQ(dense.outputs_size(), 1);
  EXPECT_EQ(dense.properties().at("layers"), "2");

  inference::ModelConfigRequest config_request;
  config_request.set_name("demo");
  MOE_ASSERT_OK_AND_ASSIGN(const auto config,
                           Call(&Stub::ModelConfig, config_request));
  EXPECT_EQ(config.config().name(), "demo");
  EXPECT_EQ(config.config().max_batch_size(), 8192);
  ASSERT_EQ(config.config().input_size(), 3);
  EXPECT_THAT(config.config().input(0).dims(), ElementsAre(kDModel));
  EXPECT_EQ(config.config().input(0).data_type(), inference::TYPE_FP32);
  EXPECT_FALSE(config.config().input(0).optional());
  EXPECT_TRUE(config.config().input(1).optional());
  EXPECT_EQ(config.config().output_size(), 3);

  request.set_name("nobody");
  EXPECT_THAT(Call(&Stub::ModelMetadata, request),
              StatusIs(absl::StatusCode::kNotFound, _));
  config_request.set_name("nobody");
  EXPECT_THAT(Call(&Stub::ModelConfig, config_request),
              StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(InferenceServiceTest, TokenIsNeededForEverythingButProbesOfTheServer) {
  const TempFolder folder;
  ServerOptions options = DemoOptions();
  options.auth_token_file = folder.Write("tokens", "secret\n");
  Start(options);
  using Stub = inference::GRPCInferenceService::Stub;
  MOE_EXPECT_OK(Call(&Stub::ServerLive, {}));
  MOE_EXPECT_OK(Call(&Stub::ServerReady, {}));
  const auto refused = StatusIs(absl::StatusCode::kUnauthenticated,
                                HasSubstr("authorization: want"));
  EXPECT_THAT(Call(&Stub::ServerMetadata, {}), refused);
  EXPECT_THAT(Call(&Stub::ModelReady, {}), refused);
  EXPECT_THAT(Call(&Stub::ModelMetadata, {}), refused);
  EXPECT_THAT(Call(&Stub::ModelConfig, {}), refused);
  EXPECT_THAT(Infer(Request(1)), refused);
  grpc::ClientContext context;
  EXPECT_EQ(stub_->ModelStreamInfer(&context)->Finish().error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(InferenceServiceTest, DrainTurnsRequestsAway) {
  Start();
  MOE_EXPECT_OK(Infer(Request(1)));
  grpc::ClientContext context;
  auto stream = stub_->ModelStreamInfer(&context);
  ASSERT_TRUE(stream->Write(Request(1)));
  inference::ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Read(&response));
  server_->Drain();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(InferenceServiceTest, CountsRequestsTokensAndBatches) {
  Start();
  MOE_EXPECT_OK(Infer(Request(3)));
  MOE_EXPECT_OK(Infer(Request(4)));
  MOE_EXPECT_OK(Infer(Request(5, kDense)));
  using Stub = inference::GRPCInferenceService::Stub;
  inference::ModelStatisticsRequest request;
  request.set_name("demo.layers.0");
  MOE_ASSERT_OK_AND_ASSIGN(const auto layer,
                           Call(&Stub::ModelStatistics, request));
  ASSERT_EQ(layer.model_stats_size(), 1);
  EXPECT_EQ(layer.model_stats(0).name(), "demo.layers.0");
  EXPECT_EQ(layer.model_stats(0).version(), "1");
  EXPECT_EQ(layer.model_stats(0).inference_count(), 7);
  EXPECT_EQ(layer.model_stats(0).execution_count(), 2);
  EXPECT_GT(layer.model_stats(0).last_inference(), 0);
  const auto& times = layer.model_stats(0).inference_stats();
  EXPECT_EQ(times.success().count(), 2);
  EXPECT_GT(times.success().ns(), 0);
  EXPECT_EQ(times.fail().count(), 0);
  EXPECT_EQ(times.queue().count(), 2);
  EXPECT_EQ(times.compute_input().count(), 2);
  EXPECT_EQ(times.compute_infer().count(), 2);
  EXPECT_GT(times.compute_infer().ns(), 0);
  EXPECT_EQ(times.compute_output().count(), 2);
  EXPECT_GE(times.success().ns(),
            times.compute_infer().ns() + times.compute_input().ns());

  request.clear_name();
  MOE_ASSERT_OK_AND_ASSIGN(const auto all,
                           Call(&Stub::ModelStatistics, request));
  ASSERT_EQ(all.model_stats_size(), 1);
  EXPECT_EQ(all.model_stats(0).name(), "demo");
  EXPECT_EQ(all.model_stats(0).inference_count(), 12);
  EXPECT_GT(all.model_stats(0).memory_usage(0).byte_size(), 0);
  request.set_name("nobody");
  EXPECT_THAT(Call(&Stub::ModelStatistics, request),
              StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(InferenceServiceTest, ModelsAreManagedByThoseWhoAreAllowedTo) {
  using Stub = inference::GRPCInferenceService::Stub;
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("demo");
  inference::RepositoryModelUnloadRequest unload;
  unload.set_model_name("demo");
  (*unload.mutable_parameters())["unload_dependents"].set_bool_param(false);
  Start();
  const auto denied = StatusIs(absl::StatusCode::kPermissionDenied,
                               HasSubstr("want --model_control"));
  EXPECT_THAT(Call(&Stub::RepositoryModelLoad, load), denied);
  EXPECT_THAT(Call(&Stub::RepositoryModelUnload, unload), denied);

  const TempFolder folder;
  ServerOptions options = DemoOptions();
  options.admin_token_file = folder.Write("admin_tokens", "secret\n");
  Start(options);
  const auto refused =
      StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("an admin token"));
  EXPECT_THAT(Call(&Stub::RepositoryModelLoad, load), refused);
  EXPECT_THAT(Call(&Stub::RepositoryModelUnload, unload), refused);
  const auto load_with = [&](const char* token) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
    inference::RepositoryModelLoadResponse loaded;
    return FromGrpcStatus(stub_->RepositoryModelLoad(&context, load, &loaded));
  };
  EXPECT_THAT(load_with("unknown"), refused);
  MOE_EXPECT_OK(load_with("secret"));

  // Who is known, but no admin, is not asked who it is.
  options.auth_token_file = folder.Write("tokens", "caller\n");
  Start(options);
  EXPECT_THAT(load_with("caller"), StatusIs(absl::StatusCode::kPermissionDenied,
                                            HasSubstr("an admin token")));
  EXPECT_THAT(load_with("unknown"), refused);
  MOE_EXPECT_OK(load_with("secret"));
}

TEST_F(InferenceServiceTest, LoadsUnloadsAndListsModels) {
  ServerOptions options = DemoOptions();
  options.model_control = true;
  Start(options);
  using Stub = inference::GRPCInferenceService::Stub;
  const auto index = [&](bool ready) {
    inference::RepositoryIndexRequest request;
    request.set_ready(ready);
    auto response = Call(&Stub::RepositoryIndex, request);
    MOE_EXPECT_OK(response);
    return response.value_or(inference::RepositoryIndexResponse());
  };
  ASSERT_EQ(index(false).models_size(), 1);
  EXPECT_EQ(index(false).models(0).name(), "demo");
  EXPECT_EQ(index(false).models(0).version(), "1");
  EXPECT_EQ(index(false).models(0).state(), "READY");

  inference::RepositoryModelUnloadRequest unload;
  unload.set_model_name("demo");
  MOE_EXPECT_OK(Call(&Stub::RepositoryModelUnload, unload));
  EXPECT_THAT(Infer(Request(1)), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_EQ(index(true).models_size(), 0);
  EXPECT_EQ(index(false).models(0).state(), "UNAVAILABLE");
  EXPECT_EQ(index(false).models(0).reason(), "unloaded");

  inference::RepositoryModelLoadRequest load;
  load.set_model_name("demo");
  MOE_EXPECT_OK(Call(&Stub::RepositoryModelLoad, load));
  MOE_EXPECT_OK(Infer(Request(1)));
  MOE_EXPECT_OK(Call(&Stub::RepositoryModelLoad, load)) << "again";
  MOE_EXPECT_OK(Infer(Request(1)));

  load.set_model_name("nobody");
  EXPECT_THAT(Call(&Stub::RepositoryModelLoad, load),
              StatusIs(absl::StatusCode::kNotFound, _));
  load.set_model_name("demo");
  (*load.mutable_parameters())["config"].set_string_param("{}");
  EXPECT_THAT(Call(&Stub::RepositoryModelLoad, load),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("parameters: want none")));
  unload.set_repository_name("other");
  EXPECT_THAT(
      Call(&Stub::RepositoryModelUnload, unload),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("repository_name")));
}

}  // namespace
}  // namespace moe
