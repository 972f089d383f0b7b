#include "server/client/http_get.h"

#include <array>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "civetweb.h"

namespace moe {
namespace {

constexpr int kTimeoutMilliseconds = 10'000;
constexpr size_t kMaxBodyBytes = size_t{256} << 20;

// The library counts its users.
class CivetWeb {
 public:
  CivetWeb() { mg_init_library(0); }
  ~CivetWeb() { mg_exit_library(); }
  CivetWeb(const CivetWeb&) = delete;
  CivetWeb& operator=(const CivetWeb&) = delete;
};

}  // namespace

absl::StatusOr<std::string> HttpGet(absl::string_view flag,
                                    const HttpRequest& request) {
  const std::string& address = request.address;
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": want HOST:PORT, got \"", address, "\""));
  }
  const std::string host = address.substr(0, colon);
  const CivetWeb library;
  std::array<char, 256> error{};
  const std::unique_ptr<mg_connection, decltype(&mg_close_connection)>
      connection(mg_connect_client(host.c_str(), port, /*use_ssl=*/0,
                                   error.data(), error.size()),
                 &mg_close_connection);
  if (connection == nullptr) {
    return absl::UnavailableError(absl::StrCat("nothing answers at ", address));
  }
  std::string text =
      absl::StrCat("GET ", request.path, " HTTP/1.0\r\nHost: ", host, "\r\n");
  if (!request.password.empty()) {
    absl::StrAppend(
        &text, "Authorization: Basic ",
        absl::Base64Escape(absl::StrCat("doctor:", request.password)), "\r\n");
  }
  absl::StrAppend(&text, "\r\n");
  mg_write(connection.get(), text.data(), text.size());
  if (mg_get_response(connection.get(), error.data(), error.size(),
                      kTimeoutMilliseconds) < 0) {
    return absl::UnavailableError(
        absl::StrCat(address, " does not answer as an HTTP server does"));
  }
  const int code = mg_get_response_info(connection.get())->status_code;
  if (code == 401) {
    return absl::UnauthenticatedError(
        absl::StrCat(address, " asks for a token: --token_file"));
  }
  if (code != 200) {
    return absl::InternalError(
        absl::StrCat(address, " answers with HTTP status ", code));
  }
  std::string body;
  std::array<char, 16384> buffer{};
  while (true) {
    const int size = mg_read(connection.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    body.append(buffer.data(), static_cast<size_t>(size));
    if (body.size() > kMaxBodyBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          address, ": want an answer of at most ", kMaxBodyBytes, " bytes"));
    }
  }
  return body;
}

std::string UrlEncode(absl::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '_' || c == '.' ||
        c == '~') {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", byte);
    }
  }
  return encoded;
}

}  // namespace moe
