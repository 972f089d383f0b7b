#include "server/client/connection.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "server/grpc_status.h"
#include "server/tensor_codec.h"

namespace moe {
namespace {

std::shared_ptr<grpc::Channel> MakeChannel(
    const ConnectionOptions& options,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  if (!options.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls_server_name);
  }
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Connections to the same server would else be one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A server that restarts is found again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(options.address, credentials, arguments);
}

absl::StatusOr<std::string> ReadFile(absl::string_view flag,
                                     const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    return absl::NotFoundError(absl::StrCat(flag, ": can't read ", path));
  }
  return text.str();
}

// A response tensor of two dimensions whose byte count fits.
absl::StatusOr<WireMatrix> AsMatrix(const v1::Tensor& tensor) {
  if (tensor.shape_size() != 2 || tensor.shape(0) < 0 || tensor.shape(1) < 0 ||
      (tensor.shape(1) > 0 &&
       tensor.shape(0) > static_cast<int64_t>(tensor.data().size()))) {
    return absl::InternalError("response tensor: want a matrix");
  }
  const WireMatrix matrix{.dtype = tensor.dtype(),
                          .rows = tensor.shape(0),
                          .cols = tensor.shape(1),
                          .data = tensor.data().data()};
  const int64_t want = matrix.rows * matrix.cols * ElementBytes(matrix.dtype);
  if (want != static_cast<int64_t>(tensor.data().size())) {
    return absl::InternalError(absl::StrCat(
        "response tensor: want ", want, " bytes, got ", tensor.data().size()));
  }
  return matrix;
}

}  // namespace

Connection::Connection(
    const ConnectionOptions& options, const std::string& token,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : channel_(MakeChannel(options, credentials)),
      stub_(v1::MoeService::NewStub(channel_)),
      health_(grpc::health::v1::Health::NewStub(channel_)),
      timeout_(options.timeout),
      authorization_(token.empty() ? "" : absl::StrCat("Bearer ", token)) {}

Connection::Connection(const std::string& address, absl::Duration timeout)
    : Connection({.address = address, .timeout = timeout}, "",
                 grpc::InsecureChannelCredentials()) {}

absl::StatusOr<Connection> Connection::Open(const ConnectionOptions& options) {
  std::string token;
  if (!options.token_file.empty()) {
    MOE_ASSIGN_OR_RETURN(const std::string text,
                         ReadFile("--token_file", options.token_file));
    token = std::string(
        absl::StripAsciiWhitespace(text.substr(0, text.find('\n'))));
    if (token.empty()) {
      return absl::InvalidArgumentError(
          "--token_file: want a token in the first line, got none");
    }
  }
  if (options.cert_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError(
        "--tls_cert_file: want it together with --tls_key_file");
  }
  if (!options.tls && options.ca_file.empty() && options.cert_file.empty()) {
    if (!options.tls_server_name.empty()) {
      return absl::InvalidArgumentError(
          "--tls_server_name: want --tls or --tls_ca_file with it");
    }
    return Connection(options, token, grpc::InsecureChannelCredentials());
  }
  grpc::SslCredentialsOptions ssl;
  if (!options.ca_file.empty()) {
    MOE_ASSIGN_OR_RETURN(ssl.pem_root_certs,
                         ReadFile("--tls_ca_file", options.ca_file));
  }
  if (!options.cert_file.empty()) {
    MOE_ASSIGN_OR_RETURN(ssl.pem_cert_chain,
                         ReadFile("--tls_cert_file", options.cert_file));
    MOE_ASSIGN_OR_RETURN(ssl.pem_private_key,
                         ReadFile("--tls_key_file", options.key_file));
  }
  return Connection(options, token, grpc::SslCredentials(ssl));
}

void Connection::Prepare(grpc::ClientContext* context) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout_));
  if (!authorization_.empty()) {
    context->AddMetadata("authorization", authorization_);
  }
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
  return Call(*stub_, &v1::MoeService::Stub::GetModel, request);
}

absl::StatusOr<bool> Connection::Healthy() const {
  MOE_ASSIGN_OR_RETURN(const grpc::health::v1::HealthCheckResponse response,
                       Call(*health_, &grpc::health::v1::Health::Stub::Check,
                            grpc::health::v1::HealthCheckRequest()));
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
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
