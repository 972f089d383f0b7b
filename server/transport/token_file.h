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
#include "server/common/file_watcher.h"

namespace moe {

// Thread-safe. Requests read a snapshot of the tokens; the watcher's thread
// reads the file and makes the next one.
class TokenFile {
 public:
  // The file has one token per line, any of which opens the door; so a new one
  // can be added before the old one goes. It is read again when `watcher` finds
  // that it has changed; if it can't be read or holds no token, the old tokens
  // stay. The watcher has to stop before the object goes.
  // flag: the one that names the file, for messages.
  // Errors: NOT_FOUND, INVALID_ARGUMENT naming the flag.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(
      const std::string& path, const std::string& flag, FileWatcher* watcher);

  // Whether `token` is one of the tokens. Takes the same time whatever they
  // have in common.
  bool Accepts(absl::string_view token) const;
  // The same for the value of an authorization header: "Bearer TOKEN".
  bool AcceptsHeader(absl::string_view authorization) const;

 private:
  // Digests are equally long, hence compared in constant time.
  using Digest = std::array<uint8_t, 32>;
  using Digests = std::shared_ptr<const std::vector<Digest>>;

  TokenFile(const std::string& path, const std::string& flag)
      : path_(path), flag_(flag) {}
  absl::StatusOr<Digests> Load() const;
  void Reload();

  const std::string path_;
  const std::string flag_;
  // Shared by all who read, and held for the copy of a pointer.
  mutable absl::Mutex mutex_;
  Digests digests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace moe
