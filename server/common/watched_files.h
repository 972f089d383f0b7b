// Tells when files on disk have changed, as certificates and tokens do when
// they are renewed.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moe {

// Thread-safety: thread-compatible.
class WatchedFiles {
 public:
  // Empty paths are left out.
  explicit WatchedFiles(const std::vector<std::string>& paths);

  // Whether any file is another one, or has been written, since the last call
  // that said so (or since construction). Costs one stat per file.
  bool Changed();

 private:
  struct Stamp {
    ino_t inode = 0;
    off_t size = -1;  // -1 = no such file
    int64_t mtime_ns = 0;

    friend bool operator==(const Stamp& a, const Stamp& b) {
      return a.inode == b.inode && a.size == b.size && a.mtime_ns == b.mtime_ns;
    }
  };

  std::vector<Stamp> Look() const;

  std::vector<std::string> paths_;
  std::vector<Stamp> stamps_;
};

}  // namespace moe
