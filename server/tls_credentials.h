// TLS for the gRPC server, with certificates that can be renewed on disk.

#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"

namespace moe {

// PEM files.
struct TlsFiles {
  std::string cert_file;       // the server's certificate chain
  std::string key_file;        // its private key
  std::string client_ca_file;  // if set, clients must have a certificate of one
                               // of these authorities
};

// Credentials that read the files now, and again when a handshake finds that
// they have changed: then on_reload(true) is called; or on_reload(false) if
// they are no good, and the certificates in use stay.
// Errors: NOT_FOUND, INVALID_ARGUMENT naming the flag.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(
    const TlsFiles& files, absl::AnyInvocable<void(bool ok)> on_reload);

}  // namespace moe
