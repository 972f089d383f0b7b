#include "server/transport/tls_credentials.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "server/common/logging.h"
#include "server/common/read_file.h"

namespace moe {
namespace {

struct PemTexts {
  std::string cert;
  std::string key;
  std::string client_ca;
  absl::Time expiry;
};

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free>>;
using X509Ptr = std::unique_ptr<X509, Freer<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

BioPtr BioOf(const std::string& pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// The first certificate of a PEM text.
absl::StatusOr<X509Ptr> ParseCertificate(absl::string_view flag,
                                         const std::string& pem) {
  const BioPtr bio = BioOf(pem);
  X509Ptr cert(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (cert == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": want a certificate in PEM format"));
  }
  return cert;
}

absl::Time ExpiryOf(const X509& cert) {
  std::tm time{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&cert), &time) != 1) {
    return absl::InfiniteFuture();
  }
  return absl::FromTM(time, absl::UTCTimeZone());
}

// gRPC takes whatever it is given: what would make handshakes fail is found
// here. Sets the expiry.
absl::Status Check(PemTexts& pem) {
  MOE_ASSIGN_OR_RETURN(const X509Ptr cert,
                       ParseCertificate("--tls_cert_file", pem.cert));
  const BioPtr bio = BioOf(pem.key);
  // An empty password, so that nobody is asked for one.
  const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr,
                                           const_cast<char*>("")));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        "--tls_key_file: want a private key in PEM format without a password");
  }
  const bool fits = X509_check_private_key(cert.get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return absl::InvalidArgumentError(
        "--tls_key_file: want the key of the certificate in --tls_cert_file");
  }
  pem.expiry = ExpiryOf(*cert);
  if (X509_cmp_current_time(X509_get0_notAfter(cert.get())) < 0) {
    return absl::InvalidArgumentError(
        "--tls_cert_file: the certificate has expired");
  }
  if (pem.client_ca.empty()) return absl::OkStatus();
  return ParseCertificate("--tls_client_ca_file", pem.client_ca).status();
}

absl::StatusOr<PemTexts> Load(const TlsFiles& files) {
  PemTexts pem;
  MOE_ASSIGN_OR_RETURN(pem.cert,
                       ReadSmallFile("--tls_cert_file", files.cert_file));
  MOE_ASSIGN_OR_RETURN(pem.key,
                       ReadSmallFile("--tls_key_file", files.key_file));
  if (!files.client_ca_file.empty()) {
    MOE_ASSIGN_OR_RETURN(pem.client_ca, ReadSmallFile("--tls_client_ca_file",
                                                      files.client_ca_file));
  }
  MOE_RETURN_IF_ERROR(Check(pem));
  return pem;
}

// What gRPC asks for certificates at each handshake. Thread-safe.
class Reloader {
 public:
  Reloader(const TlsFiles& files, PemTexts pem, TlsEvents events)
      : files_(files),
        events_(std::move(events)),
        next_(std::make_unique<PemTexts>(std::move(pem))) {
    events_.on_use(next_->expiry);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* reloader, grpc_ssl_server_certificate_config** config) {
    return static_cast<Reloader*>(reloader)->Fetch(config);
  }

  // By one thread at a time.
  void Reload() {
    auto pem = Load(files_);
    if (!pem.ok()) {
      LogWarning(absl::StrCat("keeping the old TLS certificates: ",
                              pem.status().message()));
      return events_.on_reload(false);
    }
    const absl::Time expiry = pem->expiry;
    auto next = std::make_unique<PemTexts>(*std::move(pem));
    {
      absl::MutexLock lock(&mutex_);
      next_.swap(next);
    }
    events_.on_use(expiry);
    LogInfo("TLS certificates: read again");
    events_.on_reload(true);
  }

 private:
  grpc_ssl_certificate_config_reload_status Fetch(
      grpc_ssl_server_certificate_config** config) {
    std::unique_ptr<PemTexts> next;
    {
      absl::MutexLock lock(&mutex_);
      next.swap(next_);
    }
    if (next == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = next->key.c_str(),
                                             .cert_chain = next->cert.c_str()};
    // gRPC insists on authorities even if no client is asked for a certificate.
    const std::string& authorities =
        next->client_ca.empty() ? next->cert : next->client_ca;
    *config = grpc_ssl_server_certificate_config_create(
        authorities.c_str(), &pair, /*num_key_cert_pairs=*/1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles files_;
  TlsEvents events_;
  absl::Mutex mutex_;
  // What gRPC does not have yet; null: nothing new.
  std::unique_ptr<PemTexts> next_ ABSL_GUARDED_BY(mutex_);
};

// gRPC's C++ library has no credentials that ask for certificates, only its
// core has.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  ReloadingCredentials(std::shared_ptr<Reloader> reloader,
                       grpc_ssl_client_certificate_request_type request)
      : reloader_(std::move(reloader)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                request, &Reloader::Fetch, reloader_.get()))) {
    MOE_CHECK(credentials_ != nullptr);
  }
  ~ReloadingCredentials() override {
    grpc_server_credentials_release(credentials_);
  }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address,
                      grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  const std::shared_ptr<Reloader> reloader_;
  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTlsCredentials(
    const TlsFiles& files, TlsEvents events, FileWatcher* watcher) {
  // Watched first: files that change meanwhile are read again.
  WatchedFiles watched({files.cert_file, files.key_file, files.client_ca_file});
  MOE_ASSIGN_OR_RETURN(PemTexts pem, Load(files));
  const auto request =
      files.client_ca_file.empty()
          ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
          : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  auto reloader =
      std::make_shared<Reloader>(files, std::move(pem), std::move(events));
  watcher->Watch(std::move(watched), [reloader] { reloader->Reload(); });
  return std::make_shared<ReloadingCredentials>(std::move(reloader), request);
}

}  // namespace moe
