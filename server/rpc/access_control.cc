#include "server/rpc/access_control.h"

#include "absl/strings/string_view.h"

namespace moe {
namespace {

bool ShowsToken(const grpc::CallbackServerContext& context,
                const TokenFile& tokens) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  return found != metadata.end() &&
         tokens.AcceptsHeader(
             absl::string_view(found->second.data(), found->second.size()));
}

}  // namespace

absl::Status AccessControl::Authorize(
    const grpc::CallbackServerContext& context, Access access) const {
  switch (access) {
    case Access::kNothing:
      return absl::OkStatus();
    case Access::kControl:
      return AuthorizeControl(context);
    default:
      return Authorize(context);
  }
}

absl::Status AccessControl::Authorize(
    const grpc::CallbackServerContext& context) const {
  if (options_.tokens == nullptr || ShowsToken(context, *options_.tokens)) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      "authorization: want \"Bearer TOKEN\" with a token of this server");
}

absl::Status AccessControl::AuthorizeControl(
    const grpc::CallbackServerContext& context) const {
  if (!options_.model_control) {
    return absl::PermissionDeniedError(
        "models can't be loaded or unloaded here: want --model_control or "
        "--admin_token_file");
  }
  if (options_.admin_tokens == nullptr) return Authorize(context);
  if (ShowsToken(context, *options_.admin_tokens)) return absl::OkStatus();
  // A caller that is known already need not say again who it is: it may not.
  const bool known =
      options_.tokens != nullptr && ShowsToken(context, *options_.tokens);
  return absl::Status(
      known ? absl::StatusCode::kPermissionDenied
            : absl::StatusCode::kUnauthenticated,
      "authorization: want \"Bearer TOKEN\" with an admin token of this "
      "server");
}

}  // namespace moe
