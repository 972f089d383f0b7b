#include "server/transport/token_file.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "experts/base/status_macros.h"
#include "server/common/logging.h"
#include "server/common/read_file.h"

namespace moe {
namespace {

std::array<uint8_t, 32> DigestOf(absl::string_view token) {
  std::array<uint8_t, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         digest.data());
  return digest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(
    const std::string& path, const std::string& flag, FileWatcher* watcher) {
  // Watched first: a file that changes meanwhile is read again.
  WatchedFiles files({path});
  std::unique_ptr<TokenFile> file(new TokenFile(path, flag));
  MOE_ASSIGN_OR_RETURN(Digests digests, file->Load());
  {
    absl::MutexLock lock(&file->mutex_);
    file->digests_ = std::move(digests);
  }
  watcher->Watch(std::move(files), [raw = file.get()] { raw->Reload(); });
  return file;
}

absl::StatusOr<TokenFile::Digests> TokenFile::Load() const {
  MOE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(flag_, path_));
  std::vector<Digest> digests;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view token = absl::StripAsciiWhitespace(line);
    if (!token.empty()) digests.push_back(DigestOf(token));
  }
  if (digests.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag_, ": want a token per line, got none in ", path_));
  }
  return std::make_shared<const std::vector<Digest>>(std::move(digests));
}

void TokenFile::Reload() {
  auto loaded = Load();
  if (!loaded.ok()) {
    LogWarning(
        absl::StrCat("keeping the old tokens: ", loaded.status().message()));
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    digests_.swap(*loaded);
  }
  LogInfo(absl::StrCat(flag_, ": read again"));
}

bool TokenFile::Accepts(absl::string_view token) const {
  const Digest digest = DigestOf(token);
  Digests digests;
  {
    absl::ReaderMutexLock lock(&mutex_);
    digests = digests_;
  }
  bool accepted = false;
  for (const Digest& known : *digests) {
    accepted |= CRYPTO_memcmp(digest.data(), known.data(), digest.size()) == 0;
  }
  return accepted;
}

bool TokenFile::AcceptsHeader(absl::string_view authorization) const {
  constexpr absl::string_view kScheme = "bearer ";
  return absl::StartsWithIgnoreCase(authorization, kScheme) &&
         Accepts(
             absl::StripAsciiWhitespace(authorization.substr(kScheme.size())));
}

}  // namespace moe
