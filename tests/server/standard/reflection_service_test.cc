#include "server/standard/reflection_service.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "moe/shards/shards.pb.h"
#include "moe/v1/moe.pb.h"
#include "server/common/file_watcher.h"
#include "server/transport/token_file.h"
#include "server/wire/message_head.h"
#include "tests/server/rpc/in_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using grpc::reflection::v1alpha::ServerReflection;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;
using ::testing::ElementsAre;

// The names of the files in an answer.
std::vector<std::string> Files(const ServerReflectionResponse& response) {
  std::vector<std::string> names;
  for (const std::string& bytes :
       response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

TEST(ReflectTest, ListsTheServicesThatAreOffered) {
  ServerReflectionRequest request;
  request.set_host("host");
  request.set_list_services("*");
  const ServerReflectionResponse response = Reflect(request, {"a.A", "b.B"});
  EXPECT_EQ(response.valid_host(), "host");
  EXPECT_EQ(response.original_request().list_services(), "*");
  ASSERT_EQ(response.list_services_response().service_size(), 2);
  EXPECT_EQ(response.list_services_response().service(1).name(), "b.B");
}

TEST(ReflectTest, DescribesFilesWithWhatTheyImport) {
  // Linked in.
  EXPECT_EQ(shards::ForwardExpertsRequest::descriptor()->full_name(),
            "moe.shards.ForwardExpertsRequest");
  ServerReflectionRequest request;
  request.set_file_containing_symbol("moe.shards.ForwardExpertsRequest");
  EXPECT_THAT(Files(Reflect(request, {})),
              ElementsAre("moe/shards/shards.proto", "moe/v1/moe.proto"));
  for (const char* symbol :
       {"moe.v1.MoeService", "moe.v1.MoeService.Forward", "moe.v1.DType"}) {
    request.set_file_containing_symbol(symbol);
    EXPECT_THAT(Files(Reflect(request, {})), ElementsAre("moe/v1/moe.proto"))
        << symbol;
  }
  request.set_file_by_filename("moe/v1/moe.proto");
  EXPECT_THAT(Files(Reflect(request, {})), ElementsAre("moe/v1/moe.proto"));
}

TEST(ReflectTest, TypesOfProto3HaveNoExtensions) {
  ServerReflectionRequest request;
  request.set_all_extension_numbers_of_type("moe.v1.Tensor");
  const ServerReflectionResponse response = Reflect(request, {});
  EXPECT_EQ(response.all_extension_numbers_response().base_type_name(),
            "moe.v1.Tensor");
  EXPECT_EQ(response.all_extension_numbers_response().extension_number_size(),
            0);
}

TEST(ReflectTest, SaysWhatThereIsNot) {
  ServerReflectionRequest requests[5];
  requests[0].set_file_by_filename("none.proto");
  requests[1].set_file_containing_symbol("no.Such");
  requests[2].mutable_file_containing_extension()->set_containing_type(
      "moe.v1.Tensor");
  requests[3].mutable_file_containing_extension()->set_containing_type("no");
  requests[4].set_all_extension_numbers_of_type("no");
  for (const ServerReflectionRequest& request : requests) {
    const ServerReflectionResponse response = Reflect(request, {});
    EXPECT_EQ(response.error_response().error_code(), grpc::NOT_FOUND)
        << request.ShortDebugString();
  }
  EXPECT_EQ(Reflect({}, {}).error_response().error_code(),
            grpc::INVALID_ARGUMENT);
}

class ReflectionServiceTest : public ::testing::Test {
 protected:
  // The status that a stream ends with after its only request.
  static grpc::Status Ask(ServerReflection::Stub& stub,
                          const ServerReflectionRequest& request,
                          const std::string& token, int* answers) {
    ClientCall context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    const auto stream = stub.ServerReflectionInfo(&context);
    stream->Write(request);
    stream->WritesDone();
    ServerReflectionResponse response;
    for (*answers = 0; stream->Read(&response);) ++*answers;
    return stream->Finish();
  }

  TempFolder folder_;
  FileWatcher watcher_;
};

TEST_F(ReflectionServiceTest, NeedsATokenWhereCallsDo) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const auto tokens,
      TokenFile::Open(folder_.Write("tokens", "a-token"), "--f", &watcher_));
  Backend backend({.access = {.tokens = tokens.get()}});
  ReflectionService service(&backend.services(), {"a.A"});
  const InProcess server(&service);
  const auto stub = ServerReflection::NewStub(server.channel());
  ServerReflectionRequest request;
  request.set_list_services("*");
  int answers = 0;
  EXPECT_EQ(Ask(*stub, request, "", &answers).error_code(),
            grpc::UNAUTHENTICATED);
  EXPECT_EQ(answers, 0);
  EXPECT_TRUE(Ask(*stub, request, "a-token", &answers).ok());
  EXPECT_EQ(answers, 1);
}

TEST_F(ReflectionServiceTest, EndsAtAMessageThatIsTooLarge) {
  Backend backend;
  ReflectionService service(&backend.services(), {});
  const InProcess server(&service);
  const auto stub = ServerReflection::NewStub(server.channel());
  ServerReflectionRequest request;
  request.set_file_by_filename(std::string(kMaxHeadBytes, 'x'));
  int answers = 0;
  EXPECT_EQ(Ask(*stub, request, "", &answers).error_code(),
            grpc::INVALID_ARGUMENT);
  EXPECT_EQ(answers, 0);
}

}  // namespace
}  // namespace moe
