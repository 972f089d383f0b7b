// A client's side of moe.v1: a channel, and calls with Status.
//
// Thread-safe.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "moe/v1/moe.grpc.pb.h"

namespace moe {

class Connection {
 public:
  // address: "HOST:PORT", or any gRPC target. Does not wait for the server.
  // Message sizes are not limited on this side: the server's limits count.
  explicit Connection(const std::string& address,
                      absl::Duration timeout = absl::Seconds(60));

  absl::StatusOr<v1::ForwardResponse> Forward(
      const v1::ForwardRequest& request) const;
  absl::StatusOr<v1::RouteResponse> Route(
      const v1::RouteRequest& request) const;
  absl::StatusOr<v1::ListModelsResponse> ListModels() const;
  // Whether the server says that it serves.
  absl::StatusOr<bool> Healthy() const;

 private:
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(
      Stub& stub,
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request) const;

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::MoeService::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  const absl::Duration timeout_;
};

// A wire matrix of a response, widened to float; or expert ids.
struct FloatMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;

  ConstMatrix view() const { return ConstMatrix(values.data(), rows, cols); }
};
struct IdMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int32_t> values;
};

// Errors: INTERNAL if the tensor contradicts itself.
absl::StatusOr<FloatMatrix> ToFloats(const v1::Tensor& tensor);
absl::StatusOr<IdMatrix> ToIds(const v1::Tensor& tensor);

}  // namespace moe
