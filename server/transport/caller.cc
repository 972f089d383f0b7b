#include "server/transport/caller.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "server/common/read_file.h"

namespace moe {

absl::StatusOr<Caller> Caller::Make(const CallerOptions& options,
                                    absl::string_view prefix) {
  const auto flag = [prefix](absl::string_view name) {
    return absl::StrCat(prefix, name);
  };
  Caller caller;
  if (!options.token_file.empty()) {
    MOE_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(flag("token_file"), options.token_file));
    const std::string token(
        absl::StripAsciiWhitespace(text.substr(0, text.find('\n'))));
    if (token.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag("token_file"), ": want a token in the first line, got none"));
    }
    caller.authorization_ = absl::StrCat("Bearer ", token);
  }
  if (options.cert_file.empty() != options.key_file.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(flag("tls_cert_file"),
                                                   ": want it together with ",
                                                   flag("tls_key_file")));
  }
  caller.tls_server_name_ = options.tls_server_name;
  if (!options.tls && options.ca_file.empty() && options.cert_file.empty()) {
    if (!options.tls_server_name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag("tls_server_name"), ": want ", flag("tls"), " or ",
                       flag("tls_ca_file"), " with it"));
    }
    return caller;
  }
  grpc::SslCredentialsOptions ssl;
  if (!options.ca_file.empty()) {
    MOE_ASSIGN_OR_RETURN(ssl.pem_root_certs,
                         ReadSmallFile(flag("tls_ca_file"), options.ca_file));
  }
  if (!options.cert_file.empty()) {
    MOE_ASSIGN_OR_RETURN(
        ssl.pem_cert_chain,
        ReadSmallFile(flag("tls_cert_file"), options.cert_file));
    MOE_ASSIGN_OR_RETURN(ssl.pem_private_key,
                         ReadSmallFile(flag("tls_key_file"), options.key_file));
  }
  caller.credentials_ = grpc::SslCredentials(ssl);
  return caller;
}

void Caller::Prepare(grpc::ChannelArguments& arguments) const {
  if (!tls_server_name_.empty()) {
    arguments.SetSslTargetNameOverride(tls_server_name_);
  }
}

void Caller::Prepare(grpc::ClientContext& context) const {
  if (!authorization_.empty()) {
    context.AddMetadata("authorization", authorization_);
  }
}

}  // namespace moe
