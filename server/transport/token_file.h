// Bearer tokens that callers have to show.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/common/watched_files.h"

namespace moe {

// Thread-safe.
class TokenFile {
 public:
  // The file has one token per line, any of which opens the door; so a new one
  // can be added before the old one goes. It is read again when it changes; if
  // it can't be read or holds no token, the old tokens stay.
  // flag: the one that names the file, for messages.
  // Errors: NOT_FOUND, INVALID_ARGUMENT naming the flag.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(
      const std::string& path, const std::string& flag);

  // Whether `token` is one of the tokens. Takes the same time whatever they
  // have in common.
  bool Accepts(absl::string_view token);
  // The same for the value of an authorization header: "Bearer TOKEN".
  bool AcceptsHeader(absl::string_view authorization);

 private:
  using Digest = std::array<uint8_t, 32>;

  TokenFile(const std::string& path, const std::string& flag)
      : path_(path), flag_(flag), files_({path}) {}
  absl::StatusOr<std::vector<Digest>> Load() const;

  const std::string path_;
  const std::string flag_;
  absl::Mutex mutex_;
  WatchedFiles files_ ABSL_GUARDED_BY(mutex_);
  // Digests are equally long, hence compared in constant time.
  std::vector<Digest> digests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
