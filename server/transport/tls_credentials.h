// TLS for the gRPC server, with certificates that can be renewed on disk.

#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/security/server_credentials.h"
#include "server/common/file_watcher.h"

namespace moe {

// PEM files.
struct TlsFiles {
  std::string cert_file;       // the server's certificate chain
  std::string key_file;        // its private key
  std::string client_ca_file;  // if set, clients must have a certificate of one
                               // of these authorities
};

// Called by one thread at a time.
struct TlsEvents {
  // A certificate is used from now on; when it expires.
  absl::AnyInvocable<void(absl::Time expiry)> on_use;
  // The files have changed; ok: and are used.
  absl::AnyInvocable<void(bool ok)> on_reload;
};

// Credentials that read the files now, and again when `watcher` finds that they
// have changed; handshakes take what has been read last. Where the files are no
// good then, the certificates in use stay. What the events use has to live
// until the watcher has stopped.
// Errors: NOT_FOUND, INVALID_ARGUMENT naming the flag.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(
    const TlsFiles& files, TlsEvents events, FileWatcher* watcher);

}  // namespace moe
