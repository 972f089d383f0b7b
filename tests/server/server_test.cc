// The server as its clients see it: addresses, certificates, tokens, and
// connections that behave badly.

#include "server/server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/client/connection.h"
#include "server/client/metrics_page.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ServerOptions DemoOptions() {
  ServerOptions options;
  options.demo = true;
  options.listen_address = "127.0.0.1:0";
  options.metrics_address = "";
  options.num_compute_threads = 1;
  options.measure_machine = false;
  return options;
}

// Writes a key and a certificate for it, valid for 127.0.0.1 and signed by
// itself.
void WriteCertificate(const std::string& cert_path, const std::string& key_path,
                      int64_t serial, int64_t valid_seconds = 3600) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  ASSERT_NE(key, nullptr);
  X509* cert = X509_new();
  const auto cleanup = absl::MakeCleanup([&] {
    X509_free(cert);
    EVP_PKEY_free(key);
  });
  X509_set_version(cert, 2);
  ASN1_INTEGER_set_int64(X509_get_serialNumber(cert), serial);
  X509_gmtime_adj(X509_getm_notBefore(cert), -7200);
  X509_gmtime_adj(X509_getm_notAfter(cert), valid_seconds);
  X509_set_pubkey(cert, key);
  X509_NAME* name = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const uint8_t*>("localhost"), -1,
                             -1, 0);
  X509_set_issuer_name(cert, name);
  X509_EXTENSION* address = X509V3_EXT_conf_nid(
      nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1,DNS:moe-server");
  X509_add_ext(cert, address, -1);
  X509_EXTENSION_free(address);
  ASSERT_GT(X509_sign(cert, key, EVP_sha256()), 0);
  FILE* cert_file = std::fopen(cert_path.c_str(), "w");
  PEM_write_X509(cert_file, cert);
  std::fclose(cert_file);
  FILE* key_file = std::fopen(key_path.c_str(), "w");
  PEM_write_PrivateKey(key_file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(key_file);
}

class ServerTest : public ::testing::Test {
 protected:
  void Start(const ServerOptions& options) {
    MOE_ASSERT_OK_AND_ASSIGN(server_, Server::Start(options));
  }
  // Whether a call from a new connection succeeds.
  absl::Status Call(ConnectionOptions options = {.address = ""}) const {
    if (options.address.empty()) options.address = server_->grpc_address();
    options.timeout = absl::Seconds(20);
    auto connection = Connection::Open(options);
    if (!connection.ok()) return connection.status();
    return connection->ListModels().status();
  }
  // A plain TCP connection.
  int Connect() const {
    const std::string& address = server_->grpc_address();
    int port = 0;
    EXPECT_TRUE(
        absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &name.sin_addr);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    return fd;
  }

  // TLS with files "cert" and "key" of the folder.
  ServerOptions TlsOptions() const {
    ServerOptions options = DemoOptions();
    options.tls_cert_file = folder_.File("cert");
    options.tls_key_file = folder_.File("key");
    return options;
  }
  // Trusts the certificate as it is in "trusted".
  ConnectionOptions TlsClient() const {
    return {.address = "", .caller = {.ca_file = folder_.File("trusted")}};
  }
  void MakeCertificate(int64_t serial) const {
    WriteCertificate(folder_.File("cert"), folder_.File("key"), serial);
  }
  void TrustCertificate() const {
    std::filesystem::copy_file(
        folder_.File("cert"), folder_.File("trusted"),
        std::filesystem::copy_options::overwrite_existing);
  }

  TempFolder folder_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, ServesOverAUnixSocketAndRemovesItAtTheEnd) {
  ServerOptions options = DemoOptions();
  options.listen_address = absl::StrCat("unix:", folder_.File("socket"));
  Start(options);
  EXPECT_EQ(server_->grpc_address(), options.listen_address);
  MOE_EXPECT_OK(Call());
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder_.File("socket")));
}

TEST_F(ServerTest, TakesTheUnixSocketOfADeadServerOnly) {
  ServerOptions options = DemoOptions();
  options.listen_address = absl::StrCat("unix:", folder_.File("socket"));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  folder_.File("socket").copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(dead, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  close(dead);
  Start(options);
  MOE_EXPECT_OK(Call());
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("in use")));
  MOE_EXPECT_OK(Call());
}

TEST_F(ServerTest, LeavesAFileThatIsNoSocketAlone) {
  ServerOptions options = DemoOptions();
  options.listen_address =
      absl::StrCat("unix:", folder_.Write("file", "precious"));
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("--listen_address: can't listen")));
  EXPECT_EQ(TempFolder::Contents(folder_.File("file")), "precious");
}

TEST_F(ServerTest, SaysWhyItCannotListen) {
  Start(DemoOptions());
  ServerOptions options = DemoOptions();
  options.listen_address = server_->grpc_address();
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("in use")));
  options.listen_address = "no-such-host.invalid:0";
  EXPECT_THAT(Server::Start(options), StatusIs(absl::StatusCode::kUnavailable,
                                               HasSubstr("no such host")));
  options.listen_address = absl::StrCat("unix:/", std::string(200, 'x'));
  EXPECT_THAT(Server::Start(options), StatusIs(absl::StatusCode::kUnavailable,
                                               HasSubstr("want a path of")));
}

TEST_F(ServerTest, ServesEveryAddressOfLocalhost) {
  addrinfo* addresses = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &addresses) != 0) {
    GTEST_SKIP() << "this system does not know the name localhost";
  }
  freeaddrinfo(addresses);
  ServerOptions options = DemoOptions();
  options.listen_address = "localhost:0";
  Start(options);
  EXPECT_THAT(server_->grpc_address(), StartsWith("localhost:"));
  MOE_EXPECT_OK(Call());
  close(Connect());
}

TEST_F(ServerTest, RefusesConnectionsBeyondTheBoundAndRecovers) {
  ServerOptions options = DemoOptions();
  options.max_connections = 8;
  Start(options);
  std::vector<int> idle;
  for (int i = 0; i < 8; ++i) idle.push_back(Connect());
  // Refused: the server closes it without a word.
  const int refused = Connect();
  char byte = 0;
  EXPECT_LE(read(refused, &byte, 1), 0);
  close(refused);
  for (const int fd : idle) close(fd);
  // The server notices in its own time; until then the client tries again.
  const Connection connection(server_->grpc_address());
  grpc::ClientContext context;
  connection.Prepare(&context);
  context.set_wait_for_ready(true);
  v1::ListModelsResponse response;
  EXPECT_TRUE(connection.stub().ListModels(&context, {}, &response).ok());
}

TEST_F(ServerTest, BytesThatAreNotGrpcHarmNobody) {
  Start(DemoOptions());
  const std::string inputs[] = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(10'000, '\0'),
      std::string(10'000, '\xff'),
      // The preface of HTTP/2 and frames that are none.
      absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                   std::string(999, '\x7f')),
      "PRI * HTTP/2.0\r\n\r\nSM",
      "",
  };
  std::vector<int> open;
  for (const std::string& input : inputs) {
    open.push_back(Connect());
    EXPECT_EQ(send(open.back(), input.data(), input.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(input.size()));
    MOE_EXPECT_OK(Call());
  }
  for (const int fd : open) close(fd);
}

TEST_F(ServerTest, OversizeMetadataIsRefusedAndHarmsNobody) {
  Start(DemoOptions());
  const Connection connection(server_->grpc_address());
  grpc::ClientContext context;
  connection.Prepare(&context);
  context.AddMetadata("large", std::string(64 << 10, 'x'));
  v1::ListModelsResponse response;
  EXPECT_EQ(connection.stub().ListModels(&context, {}, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  MOE_EXPECT_OK(Call());
}

TEST_F(ServerTest, CompressedMessagesAreRefused) {
  Start(DemoOptions());
  const Connection connection(server_->grpc_address());
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    connection.Prepare(&context);
    context.set_compression_algorithm(algorithm);
    v1::GetModelRequest request;
    request.set_model(std::string(1 << 20, 'x'));  // shrinks a thousandfold
    v1::ModelInfo response;
    EXPECT_EQ(
        connection.stub().GetModel(&context, request, &response).error_code(),
        grpc::StatusCode::UNIMPLEMENTED);
  }
  MOE_EXPECT_OK(connection.ListModels());
}

TEST_F(ServerTest, MessagesBeyondTheLimitAreRefused) {
  ServerOptions options = DemoOptions();
  options.max_message_bytes = 4096;
  Start(options);
  const Connection connection(server_->grpc_address());
  EXPECT_THAT(connection.GetModel(std::string(5000, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted, _));
  MOE_EXPECT_OK(connection.ListModels());
}

TEST_F(ServerTest, TokenIsNeededForEverythingButHealth) {
  ServerOptions options = DemoOptions();
  options.auth_token_file = folder_.Write("tokens", "secret\n");
  Start(options);
  const Connection nobody(server_->grpc_address());
  const auto refused = StatusIs(absl::StatusCode::kUnauthenticated,
                                HasSubstr("authorization: want"));
  EXPECT_THAT(nobody.ListModels(), refused);
  EXPECT_THAT(nobody.GetModel("demo"), refused);
  EXPECT_THAT(nobody.Forward({}), refused);
  EXPECT_THAT(nobody.Route({}), refused);
  {
    grpc::ClientContext context;
    nobody.Prepare(&context);
    EXPECT_EQ(nobody.stub().ForwardStream(&context)->Finish().error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  MOE_ASSERT_OK_AND_ASSIGN(const bool healthy, nobody.Healthy());
  EXPECT_TRUE(healthy);
  MOE_EXPECT_OK(
      Call({.address = "", .caller = {.token_file = folder_.File("tokens")}}));
}

TEST_F(ServerTest, TakesNewTokensByItself) {
  ServerOptions options = DemoOptions();
  options.auth_token_file = folder_.Write("tokens", "old\n");
  Start(options);
  folder_.Write("tokens", "new one\n");
  // The test's time limit bounds the wait.
  const ConnectionOptions client = {
      .address = "", .caller = {.token_file = folder_.File("tokens")}};
  while (absl::IsUnauthenticated(Call(client))) {
  }
  MOE_EXPECT_OK(Call(client));
}

TEST_F(ServerTest, TlsServesThoseWhoTrustIt) {
  MakeCertificate(1);
  TrustCertificate();
  Start(TlsOptions());
  MOE_EXPECT_OK(Call(TlsClient()));
  EXPECT_THAT(Call(), StatusIs(absl::StatusCode::kUnavailable, _));
  MakeCertificate(2);
  server_->LookForChangedFiles();
  std::filesystem::copy_file(folder_.File("cert"), folder_.File("other"));
  EXPECT_THAT(
      Call({.address = "", .caller = {.ca_file = folder_.File("other")}}),
      IsOk())
      << "the new certificate is in use";
}

TEST_F(ServerTest, RenewedCertificateIsUsedAndABadOneIsNot) {
  MakeCertificate(1);
  TrustCertificate();
  Start(TlsOptions());
  MOE_EXPECT_OK(Call(TlsClient()));
  folder_.Write("cert", "garbage");
  server_->LookForChangedFiles();
  MOE_EXPECT_OK(Call(TlsClient()));
  // The key of another certificate.
  WriteCertificate(folder_.File("cert"), folder_.File("unused"), 2);
  server_->LookForChangedFiles();
  MOE_EXPECT_OK(Call(TlsClient()));
  WriteCertificate(folder_.File("cert"), folder_.File("key"), 3,
                   /*valid_seconds=*/-60);
  server_->LookForChangedFiles();
  MOE_EXPECT_OK(Call(TlsClient()));
  MakeCertificate(4);
  server_->LookForChangedFiles();
  EXPECT_THAT(Call(TlsClient()), StatusIs(absl::StatusCode::kUnavailable, _))
      << "trusts the old one only";
  TrustCertificate();
  MOE_EXPECT_OK(Call(TlsClient()));
}

TEST_F(ServerTest, MetricsSayWhenTheCertificateExpires) {
  WriteCertificate(folder_.File("cert"), folder_.File("key"), 1,
                   /*valid_seconds=*/1000);
  TrustCertificate();
  ServerOptions options = TlsOptions();
  options.metrics_address = "127.0.0.1:0";
  const int64_t start = absl::ToUnixSeconds(absl::Now());
  Start(options);
  const auto seconds_left = [&] {
    const auto page = MetricsPage::Fetch(server_->metrics_address(), "");
    return page.ok() ? page->Sum("moe_tls_certificate_expiry_timestamp_seconds")
                               .value_or(0) -
                           static_cast<double>(start)
                     : 0;
  };
  EXPECT_NEAR(seconds_left(), 1000, 60);
  // The one that is in use, whatever else lies in the files.
  folder_.Write("cert", "garbage");
  server_->LookForChangedFiles();
  MOE_EXPECT_OK(Call(TlsClient()));
  EXPECT_NEAR(seconds_left(), 1000, 60);
  WriteCertificate(folder_.File("cert"), folder_.File("key"), 2,
                   /*valid_seconds=*/5000);
  server_->LookForChangedFiles();
  TrustCertificate();
  MOE_EXPECT_OK(Call(TlsClient()));
  EXPECT_NEAR(seconds_left(), 5000, 60);
}

TEST_F(ServerTest, AProbeOnLoopbackAcceptsTheNameOfTheService) {
  MakeCertificate(1);
  TrustCertificate();
  Start(TlsOptions());
  ConnectionOptions client = TlsClient();
  client.caller.tls_server_name = "another";
  EXPECT_THAT(Call(client), StatusIs(absl::StatusCode::kUnavailable, _))
      << "the certificate is not for this name";
  client.caller.tls_server_name = "moe-server";
  MOE_EXPECT_OK(Call(client));
  client.caller.ca_file.clear();
  EXPECT_THAT(Call(client), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("--tls_server_name: want")));
}

TEST_F(ServerTest, MutualTlsNeedsACertificateOfTheClient) {
  MakeCertificate(1);
  TrustCertificate();
  WriteCertificate(folder_.File("client"), folder_.File("client_key"), 5);
  ServerOptions options = TlsOptions();
  options.tls_client_ca_file = folder_.File("client");
  Start(options);
  EXPECT_THAT(Call(TlsClient()), StatusIs(absl::StatusCode::kUnavailable, _));
  ConnectionOptions client = TlsClient();
  client.caller.cert_file = folder_.File("client");
  client.caller.key_file = folder_.File("client_key");
  MOE_EXPECT_OK(Call(client));
  WriteCertificate(folder_.File("stranger"), folder_.File("stranger_key"), 6);
  client.caller.cert_file = folder_.File("stranger");
  client.caller.key_file = folder_.File("stranger_key");
  EXPECT_THAT(Call(client), StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST_F(ServerTest, NamesTheFlagOfABadFile) {
  MakeCertificate(1);
  ServerOptions options = TlsOptions();
  options.tls_key_file = folder_.Write("bad", "no key");
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--tls_key_file: want a private key")));
  options = TlsOptions();
  options.tls_cert_file = folder_.File("none");
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--tls_cert_file: can't read")));
  options = TlsOptions();
  options.tls_client_ca_file = folder_.File("bad");
  EXPECT_THAT(Server::Start(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--tls_client_ca_file: want a certificate")));
}

}  // namespace
}  // namespace moe
