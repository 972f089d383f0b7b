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
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "moe/v1/moe.grpc.pb.h"
#include "server/transport/caller.h"

namespace moe {

struct ConnectionOptions {
  // "HOST:PORT", "unix:/path", or any gRPC target.
  std::string address = "127.0.0.1:50051";
  absl::Duration timeout = absl::Seconds(60);  // of a call
  CallerOptions caller{};
};

// A TCP connection of its own.
class Connection {
 public:
  // Plain text, without a token. Does not wait for the server.
  // Message sizes are not limited on this side: the server's limits count.
  explicit Connection(const std::string& address,
                      absl::Duration timeout = ConnectionOptions{}.timeout);

  // Errors: those of Caller::Make.
  static absl::StatusOr<Connection> Open(const ConnectionOptions& options);

  absl::StatusOr<v1::ForwardResponse> Forward(
      const v1::ForwardRequest& request) const;
  absl::StatusOr<v1::RouteResponse> Route(
      const v1::RouteRequest& request) const;
  absl::StatusOr<v1::ListModelsResponse> ListModels() const;
  // Errors: also INTERNAL for a d_model that no model has.
  absl::StatusOr<v1::ModelInfo> GetModel(const std::string& name) const;
  // Whether the server says that it serves.
  absl::StatusOr<bool> Healthy() const;

  // For calls that this class has no function for: the stub, and a context
  // with deadline and token.
  v1::MoeService::Stub& stub() const { return *stub_; }
  void Prepare(grpc::ClientContext* context) const;

 private:
  Connection(const ConnectionOptions& options, Caller caller);

  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(
      Stub& stub,
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request) const;

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::MoeService::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  absl::Duration timeout_;
  Caller caller_;
};

// A wire matrix of a response, widened to float; or expert ids.
struct FloatMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values{};

  ConstMatrix view() const { return ConstMatrix(values.data(), rows, cols); }
};
struct IdMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<int32_t> values{};
};

// Whether a request of so many tokens can be made of random rows for a model
// that GetModel returned: neither the server's limit nor a message is exceeded.
// Errors: INVALID_ARGUMENT naming `flag`.
absl::Status CheckTokens(absl::string_view flag, int64_t tokens,
                         const v1::ModelInfo& model);

// Errors: INTERNAL if the tensor contradicts itself.
absl::StatusOr<FloatMatrix> ToFloats(const v1::Tensor& tensor);
absl::StatusOr<IdMatrix> ToIds(const v1::Tensor& tensor);

}  // namespace moe
