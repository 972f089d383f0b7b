#include "server/rpc/small_call.h"

#include <atomic>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "moe/v1/moe.grpc.pb.h"
#include "server/common/file_watcher.h"
#include "server/transport/token_file.h"
#include "server/wire/message_head.h"
#include "tests/server/rpc/in_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

constexpr char kToken[] = "a-token-of-this-test";

using ServiceBase =
    v1::MoeService::WithRawCallbackMethod_GetModel<v1::MoeService::Service>;

// Answers with a model of the name that was asked for; NOT_FOUND for none.
class NamingService final : public ServiceBase {
 public:
  NamingService(ServiceContext* services, const SmallMethod& method)
      : services_(*services), method_(method) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override {
    return RespondNow<v1::GetModelRequest, v1::ModelInfo>(
        services_, method_, *context, *request, response,
        [this](const v1::GetModelRequest& asked, v1::ModelInfo* answer) {
          ++filled;
          if (asked.model().empty()) return absl::NotFoundError("none");
          answer->set_name(asked.model());
          return absl::OkStatus();
        });
  }

  std::atomic<int> filled = 0;

 private:
  ServiceContext& services_;
  const SmallMethod method_;
};

class SmallCallTest : public ::testing::Test {
 protected:
  SmallCallTest() {
    auto tokens =
        TokenFile::Open(folder_.Write("tokens", kToken), "--tokens", &watcher_);
    MOE_EXPECT_OK(tokens.status());
    tokens_ = *std::move(tokens);
    backend_ = std::make_unique<Backend>(
        ServiceOptions{.access = {.tokens = tokens_.get()}});
  }

  // The status of a call with these bytes, and the name in its answer.
  static grpc::Status Call(const InProcess& server, const std::string& bytes,
                           bool show_token, std::string* name = nullptr) {
    ClientCall context;
    if (show_token) {
      context.AddMetadata("authorization", std::string("Bearer ") + kToken);
    }
    // Bytes as they are: no stub of the service would send what is no message.
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::GenericStub stub(server.channel());
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareUnaryCall(
        &context, "/moe.v1.MoeService/GetModel", request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    v1::ModelInfo info;
    if (status.ok() && name != nullptr) {
      MOE_EXPECT_OK(ParseSmall(response, &info));
      *name = info.name();
    }
    return status;
  }
  static std::string Message(const std::string& name) {
    v1::GetModelRequest request;
    request.set_model(name);
    return request.SerializeAsString();
  }

  TempFolder folder_;
  std::unique_ptr<TokenFile> tokens_;
  FileWatcher watcher_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(SmallCallTest, RespondsByFunctionToWhoMayCall) {
  NamingService service(&backend_->services(), {Method::kGetModel});
  const InProcess server(&service);
  std::string name;
  EXPECT_TRUE(Call(server, Message("demo"), true, &name).ok());
  EXPECT_EQ(name, "demo");
  EXPECT_EQ(Call(server, Message(""), true).error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(service.filled, 2);
}

// First who calls, then how large the message is, then what it says.
TEST_F(SmallCallTest, RefusesBeforeItReads) {
  NamingService service(&backend_->services(), {Method::kGetModel});
  const InProcess server(&service);
  const std::string good = Message("demo");
  const std::string largest = Message(std::string(kMaxHeadBytes - 4, 'x'));
  const std::string too_large = largest + "x";
  const std::string garbage = "\xff\xff\xff";
  ASSERT_EQ(largest.size(), kMaxHeadBytes);
  const struct {
    const char* name;
    std::string bytes;
    bool token;
    grpc::StatusCode code;
    std::string message;
  } cases[] = {
      {"no token", good, false, grpc::UNAUTHENTICATED, "authorization"},
      {"no token, garbage", garbage, false, grpc::UNAUTHENTICATED,
       "authorization"},
      {"no token, too large", too_large, false, grpc::UNAUTHENTICATED,
       "authorization"},
      {"too large", too_large, true, grpc::INVALID_ARGUMENT,
       "request: want at most 65536 bytes, got 65537"},
      {"garbage", garbage, true, grpc::INVALID_ARGUMENT,
       "request: want a moe.v1.GetModelRequest message"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const grpc::Status status = Call(server, c.bytes, c.token);
    EXPECT_EQ(status.error_code(), c.code);
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(c.message));
  }
  EXPECT_EQ(service.filled, 0);
  EXPECT_TRUE(Call(server, largest, true).ok());
}

TEST_F(SmallCallTest, SomeCallsNeedNoTokenAndSomeAreNotForAll) {
  {
    NamingService probe(&backend_->services(), {.access = Access::kNothing});
    EXPECT_TRUE(Call(InProcess(&probe), Message("demo"), false).ok());
  }
  NamingService control(&backend_->services(), {.access = Access::kControl});
  EXPECT_EQ(Call(InProcess(&control), Message("demo"), true).error_code(),
            grpc::PERMISSION_DENIED);
  EXPECT_EQ(control.filled, 0);
}

}  // namespace
}  // namespace moe
