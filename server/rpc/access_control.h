// Who may call.

#pragma once

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "server/transport/token_file.h"

namespace moe {

// The token files must outlive whoever is given them.
struct AccessOptions {
  // Callers must show one of these; null: none needed.
  const TokenFile* tokens = nullptr;
  // Whether callers may load and unload models: those who show one of these
  // tokens or, if null, all who may call.
  bool model_control = false;
  const TokenFile* admin_tokens = nullptr;
};

// What a call needs of its caller.
enum class Access {
  kNothing,
  kCalling,  // a token, if the server asks for them
  kControl,  // that models may be loaded and unloaded
};

// Thread-safe.
class AccessControl {
 public:
  explicit AccessControl(const AccessOptions& options) : options_(options) {}

  // As the two below.
  absl::Status Authorize(const grpc::CallbackServerContext& context,
                         Access access) const;
  // UNAUTHENTICATED, if the caller shows no token and has to.
  absl::Status Authorize(const grpc::CallbackServerContext& context) const;
  // PERMISSION_DENIED, if nobody may load and unload models, or the caller
  // shows a token which is no admin's; UNAUTHENTICATED, if it shows none that
  // is known.
  absl::Status AuthorizeControl(
      const grpc::CallbackServerContext& context) const;

 private:
  const AccessOptions options_;
};

}  // namespace moe
