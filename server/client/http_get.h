// One GET over plain HTTP.
//
// Thread-safe.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

struct HttpRequest {
  std::string address;   // "HOST:PORT"
  std::string path;      // with the query, encoded
  std::string password;  // of HTTP basic authentication; empty: none is sent
};

// The body of the response.
//
// flag:   what errors about the address call it, as in "--metrics".
// Errors: INVALID_ARGUMENT for no such address; UNAVAILABLE if nothing answers
// within some seconds; UNAUTHENTICATED; RESOURCE_EXHAUSTED for more than 256
// MB; INTERNAL with the HTTP status of any other answer.
absl::StatusOr<std::string> HttpGet(absl::string_view flag,
                                    const HttpRequest& request);

// `text` as part of a query: all but letters, digits and "-_.~" encoded.
std::string UrlEncode(absl::string_view text);

}  // namespace moe
