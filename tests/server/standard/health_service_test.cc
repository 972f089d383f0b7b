#include "server/standard/health_service.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/wire/message_head.h"
#include "tests/server/rpc/in_process.h"

namespace moe {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckRequest Request(const std::string& name) {
  HealthCheckRequest request;
  request.set_service(name);
  return request;
}

class HealthServiceTest : public ::testing::Test {
 protected:
  grpc::Status Check(const std::string& name, HealthCheckResponse* response) {
    ClientCall context;
    return stub_->Check(&context, Request(name), response);
  }
  static HealthCheckResponse::ServingStatus Next(
      grpc::ClientReader<HealthCheckResponse>& watch) {
    HealthCheckResponse response;
    EXPECT_TRUE(watch.Read(&response));
    return response.status();
  }

  Backend backend_;
  HealthService service_{&backend_.services()};
  InProcess server_{&service_};
  std::unique_ptr<Health::Stub> stub_ = Health::NewStub(server_.channel());
};

TEST_F(HealthServiceTest, ChecksWhatWasSetLast) {
  service_.SetServingStatus("", true);
  service_.SetServingStatus("model", false);
  HealthCheckResponse response;
  EXPECT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  EXPECT_TRUE(Check("model", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("nobody", &response).error_code(), grpc::NOT_FOUND);

  service_.SetServingStatus(true);
  EXPECT_TRUE(Check("model", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, WatchTellsEachChangeOfItsName) {
  ClientCall context;
  const auto watch = stub_->Watch(&context, Request("model"));
  EXPECT_EQ(Next(*watch), HealthCheckResponse::SERVICE_UNKNOWN);
  service_.SetServingStatus("other", true);
  service_.SetServingStatus("model", false);
  EXPECT_EQ(Next(*watch), HealthCheckResponse::NOT_SERVING);
  service_.SetServingStatus("model", false);
  service_.SetServingStatus("model", true);
  EXPECT_EQ(Next(*watch), HealthCheckResponse::SERVING);
  context.TryCancel();
  HealthCheckResponse none;
  EXPECT_FALSE(watch->Read(&none));
  EXPECT_EQ(watch->Finish().error_code(), grpc::CANCELLED);
  service_.SetServingStatus("model", false);
}

TEST_F(HealthServiceTest, WatchesEndWithTheServer) {
  ClientCall context;
  const auto watch = stub_->Watch(&context, Request(""));
  EXPECT_EQ(Next(*watch), HealthCheckResponse::SERVICE_UNKNOWN);
  server_.End();
  HealthCheckResponse none;
  EXPECT_FALSE(watch->Read(&none));
  EXPECT_FALSE(watch->Finish().ok());
}

TEST_F(HealthServiceTest, LongNamesAreRefused) {
  HealthCheckResponse response;
  EXPECT_EQ(Check(std::string(200, 'x'), &response).error_code(),
            grpc::NOT_FOUND);
  for (const size_t size : {size_t{201}, kMaxHeadBytes}) {
    const std::string name(size, 'x');
    EXPECT_EQ(Check(name, &response).error_code(), grpc::INVALID_ARGUMENT);
    ClientCall context;
    const auto watch = stub_->Watch(&context, Request(name));
    EXPECT_FALSE(watch->Read(&response));
    EXPECT_EQ(watch->Finish().error_code(), grpc::INVALID_ARGUMENT);
  }
}

}  // namespace
}  // namespace moe
