// How a process that calls gRPC shows who it is, and whom it trusts.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace moe {

struct CallerOptions {
  // PEM files. Any of them, or `tls`, turns TLS on; without ca_file the
  // system's authorities are trusted. cert_file and key_file identify the
  // caller.
  bool tls = false;
  std::string ca_file{};
  std::string cert_file{};
  std::string key_file{};
  // The name that the server's certificate is for; empty: that of the address.
  std::string tls_server_name{};
  // File whose first line is sent as bearer token; empty: none is sent.
  std::string token_file{};
};

// Thread-safe: immutable.
class Caller {
 public:
  // Plain text, without a token.
  Caller() : credentials_(grpc::InsecureChannelCredentials()) {}

  // prefix: of the flags that the options come from, as in "--" or "--shard_":
  //         PREFIXtls_ca_file, PREFIXtoken_file, ...
  // Errors: NOT_FOUND for a file that can't be read, INVALID_ARGUMENT for
  // options that contradict each other, both naming the flag.
  static absl::StatusOr<Caller> Make(const CallerOptions& options,
                                     absl::string_view prefix);

  const std::shared_ptr<grpc::ChannelCredentials>& credentials() const {
    return credentials_;
  }
  // What a channel needs besides the credentials.
  void Prepare(grpc::ChannelArguments& arguments) const;
  // Adds the token to a call.
  void Prepare(grpc::ClientContext& context) const;

 private:
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::string tls_server_name_;
  std::string authorization_;  // header, or empty
};

}  // namespace moe
