#include "server/watched_files.h"

#include <sys/stat.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

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

absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag,
                                          const std::string& path) {
  constexpr size_t kMaxBytes = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  // A folder can be opened, but not read.
  if (!file.is_open() || file.bad() || (file.gcount() == 0 && !file.eof())) {
    return absl::NotFoundError(absl::StrCat(flag, ": can't read ", path));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": want a file of at most ", kMaxBytes, " bytes: ", path));
  }
  return text;
}

}  // namespace moe
