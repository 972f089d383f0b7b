#include "server/common/watched_files.h"

#include <sys/stat.h>

#include <utility>

namespace moe {

WatchedFiles::WatchedFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (!path.empty()) paths_.push_back(path);
  }
  stamps_ = Look();
}

std::vector<WatchedFiles::Stamp> WatchedFiles::Look() const {
  std::vector<Stamp> stamps;
  for (const std::string& path : paths_) {
    Stamp stamp;
    struct stat info {};
    if (stat(path.c_str(), &info) == 0) {
      stamp = {.inode = info.st_ino,
               .size = info.st_size,
               .mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 +
                           info.st_mtim.tv_nsec};
    }
    stamps.push_back(stamp);
  }
  return stamps;
}

bool WatchedFiles::Changed() {
  std::vector<Stamp> stamps = Look();
  if (stamps == stamps_) return false;
  stamps_ = std::move(stamps);
  return true;
}

}  // namespace moe
