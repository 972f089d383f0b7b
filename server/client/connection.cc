#include "server/client/connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "server/wire/grpc_status.h"
#include "server/wire/tensor_codec.h"

namespace moe {
namespace {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Caller& caller) {
  grpc::ChannelArguments arguments;
  caller.Prepare(arguments);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Connections to the same server would else be one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A server that restarts is found again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(address, caller.credentials(), arguments);
}

// More than any model has, and little enough for a client to make rows of.
constexpr int64_t kMaxDModel = 1 << 20;
// What one message can hold.
constexpr int64_t kMaxTensorBytes = (int64_t{1} << 31) - 1;

// A response tensor of two dimensions whose byte count fits.
absl::StatusOr<WireMatrix> AsMatrix(const v1::Tensor& tensor) {
  if (tensor.shape_size() != 2 || tensor.shape(0) < 0 || tensor.shape(1) < 0) {
    return absl::InternalError("response tensor: want a matrix");
  }
  const WireMatrix matrix{.dtype = tensor.dtype(),
                          .rows = tensor.shape(0),
                          .cols = tensor.shape(1),
                          .data = tensor.data().data()};
  // Whoever sends [2^32, 2^32] must not get by with the bytes that remain of
  // the product.
  int64_t want = 0;
  const bool too_many =
      __builtin_mul_overflow(matrix.rows, matrix.cols, &want) ||
      __builtin_mul_overflow(want, ElementBytes(matrix.dtype), &want);
  if (too_many || want != static_cast<int64_t>(tensor.data().size())) {
    return absl::InternalError(absl::StrCat(
        "response tensor: want ", too_many ? "too many" : absl::StrCat(want),
        " bytes, got ", tensor.data().size()));
  }
  return matrix;
}

}  // namespace

Connection::Connection(const ConnectionOptions& options, Caller caller)
    : channel_(MakeChannel(options.address, caller)),
      stub_(v1::MoeService::NewStub(channel_)),
      health_(grpc::health::v1::Health::NewStub(channel_)),
      timeout_(options.timeout),
      caller_(std::move(caller)) {}

Connection::Connection(const std::string& address, absl::Duration timeout)
    : Connection({.address = address, .timeout = timeout}, Caller()) {}

absl::StatusOr<Connection> Connection::Open(const ConnectionOptions& options) {
  MOE_ASSIGN_OR_RETURN(Caller caller, Caller::Make(options.caller, "--"));
  return Connection(options, std::move(caller));
}

void Connection::Prepare(grpc::ClientContext* context) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  caller_.Prepare(*context);
}

template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Connection::Call(
    Stub& stub,
    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                 Response*),
    const Request& request) const {
  grpc::ClientContext context;
  Prepare(&context);
  Response response;
  MOE_RETURN_IF_ERROR(
      FromGrpcStatus((stub.*method)(&context, request, &response)));
  return response;
}

absl::StatusOr<v1::ForwardResponse> Connection::Forward(
    const v1::ForwardRequest& request) const {
  return Call(*stub_, &v1::MoeService::Stub::Forward, request);
}

absl::StatusOr<v1::RouteResponse> Connection::Route(
    const v1::RouteRequest& request) const {
  return Call(*stub_, &v1::MoeService::Stub::Route, request);
}

absl::StatusOr<v1::ListModelsResponse> Connection::ListModels() const {
  return Call(*stub_, &v1::MoeService::Stub::ListModels,
              v1::ListModelsRequest());
}

absl::StatusOr<v1::ModelInfo> Connection::GetModel(
    const std::string& name) const {
  v1::GetModelRequest request;
  request.set_model(name);
  MOE_ASSIGN_OR_RETURN(v1::ModelInfo model,
                       Call(*stub_, &v1::MoeService::Stub::GetModel, request));
  if (model.d_model() < 1 || model.d_model() > kMaxDModel) {
    return absl::InternalError(absl::StrCat(
        "response d_model: want 1 to ", kMaxDModel, ", got ", model.d_model()));
  }
  return model;
}

absl::StatusOr<bool> Connection::Healthy() const {
  MOE_ASSIGN_OR_RETURN(const grpc::health::v1::HealthCheckResponse response,
                       Call(*health_, &grpc::health::v1::Health::Stub::Check,
                            grpc::health::v1::HealthCheckRequest()));
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

absl::Status CheckTokens(absl::string_view flag, int64_t tokens,
                         const v1::ModelInfo& model) {
  const int64_t want = std::min<int64_t>(
      model.max_request_tokens(),
      kMaxTensorBytes /
          (static_cast<int64_t>(sizeof(float)) * int64_t{model.d_model()}));
  if (tokens < 0 || tokens > want) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": want at most ", want, ", got ", tokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<FloatMatrix> ToFloats(const v1::Tensor& tensor) {
  MOE_ASSIGN_OR_RETURN(const WireMatrix wire, AsMatrix(tensor));
  FloatMatrix matrix{.rows = wire.rows, .cols = wire.cols};
  matrix.values.resize(static_cast<size_t>(wire.rows * wire.cols));
  Decode(wire, Matrix(matrix.values.data(), wire.rows, wire.cols));
  return matrix;
}

absl::StatusOr<IdMatrix> ToIds(const v1::Tensor& tensor) {
  MOE_ASSIGN_OR_RETURN(const WireMatrix wire, AsMatrix(tensor));
  if (wire.dtype != v1::I32) {
    return absl::InternalError("response tensor: want I32");
  }
  IdMatrix matrix{.rows = wire.rows, .cols = wire.cols};
  matrix.values.resize(static_cast<size_t>(wire.rows * wire.cols));
  DecodeIds(wire,
            MatrixView<int32_t>(matrix.values.data(), wire.rows, wire.cols));
  return matrix;
}

}  // namespace moe
