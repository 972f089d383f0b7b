#include "server/wire/grpc_status.h"

#include <string>

#include "gtest/gtest.h"

namespace moe {
namespace {

TEST(GrpcStatusTest, EveryCodeKeepsItsMeaning) {
  struct Row {
    absl::StatusCode absl_code;
    grpc::StatusCode grpc_code;
  };
  for (const Row& row : {
           Row{absl::StatusCode::kCancelled, grpc::CANCELLED},
           Row{absl::StatusCode::kUnknown, grpc::UNKNOWN},
           Row{absl::StatusCode::kInvalidArgument, grpc::INVALID_ARGUMENT},
           Row{absl::StatusCode::kDeadlineExceeded, grpc::DEADLINE_EXCEEDED},
           Row{absl::StatusCode::kNotFound, grpc::NOT_FOUND},
           Row{absl::StatusCode::kAlreadyExists, grpc::ALREADY_EXISTS},
           Row{absl::StatusCode::kPermissionDenied, grpc::PERMISSION_DENIED},
           Row{absl::StatusCode::kResourceExhausted, grpc::RESOURCE_EXHAUSTED},
           Row{absl::StatusCode::kFailedPrecondition,
               grpc::FAILED_PRECONDITION},
           Row{absl::StatusCode::kAborted, grpc::ABORTED},
           Row{absl::StatusCode::kOutOfRange, grpc::OUT_OF_RANGE},
           Row{absl::StatusCode::kUnimplemented, grpc::UNIMPLEMENTED},
           Row{absl::StatusCode::kInternal, grpc::INTERNAL},
           Row{absl::StatusCode::kUnavailable, grpc::UNAVAILABLE},
           Row{absl::StatusCode::kDataLoss, grpc::DATA_LOSS},
           Row{absl::StatusCode::kUnauthenticated, grpc::UNAUTHENTICATED},
       }) {
    const grpc::Status status =
        ToGrpcStatus(absl::Status(row.absl_code, "layer: want 1"));
    EXPECT_EQ(status.error_code(), row.grpc_code);
    EXPECT_EQ(status.error_message(), "layer: want 1");
    EXPECT_EQ(FromGrpcStatus(status),
              absl::Status(row.absl_code, "layer: want 1"));
  }
}

TEST(GrpcStatusTest, OkStaysOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, CutsMessagesAtTheLimit) {
  const std::string at_limit(1024, 'x');
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(at_limit)).error_message(),
            at_limit);
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(at_limit + "y")).error_message(),
            at_limit);
}

}  // namespace
}  // namespace moe
