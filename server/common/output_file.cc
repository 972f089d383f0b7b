#include "server/common/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

absl::Status LastError() { return absl::ErrnoToStatus(errno, ""); }

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return LastError();
    bytes.remove_prefix(static_cast<size_t>(size));
  }
  return absl::OkStatus();
}

// Writes, and closes `fd`.
absl::Status WriteAndClose(int fd, absl::Span<const absl::string_view> parts,
                           bool sync) {
  absl::Status status;
  for (const absl::string_view part : parts) {
    if (status.ok()) status = WriteAll(fd, part);
  }
  if (sync && status.ok() && fsync(fd) != 0) status = LastError();
  // Some file systems report a full disk only now.
  if (close(fd) != 0 && status.ok()) status = LastError();
  return status;
}

// The path that a chain of symbolic links ends at, whether there is something
// or not.
absl::StatusOr<std::string> FollowLinks(std::string path) {
  constexpr int kMaxLinks = 40;  // as the kernel
  for (int i = 0; i < kMaxLinks; ++i) {
    struct stat info {};
    if (lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return path;
    std::error_code error;
    const std::filesystem::path target =
        std::filesystem::read_symlink(path, error);
    if (error) return absl::ErrnoToStatus(error.value(), "");
    // An absolute target takes the place of all of it.
    path = std::filesystem::path(path).parent_path() / target;
  }
  return absl::ErrnoToStatus(ELOOP, "");
}

// existing: what is there now; null if there is nothing.
absl::Status ReplaceFile(const std::string& path, const struct stat* existing,
                         absl::Span<const absl::string_view> parts) {
  const std::string temporary = absl::StrCat(path, ".tmp-", getpid());
  // What a process of the same number has left behind is in nobody's use.
  (void)unlink(temporary.c_str());
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
           0666);  // less the caller's umask
  if (fd < 0) return LastError();
  absl::Cleanup remove = [&temporary] { (void)unlink(temporary.c_str()); };
  if (existing != nullptr) {
    // The owner, where this process may: permissions are for the owner's sake.
    [[maybe_unused]] const int owner =
        fchown(fd, existing->st_uid, existing->st_gid);
    (void)fchmod(fd, existing->st_mode & 07777);
  }
  MOE_RETURN_IF_ERROR(WriteAndClose(fd, parts, /*sync=*/true));
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return LastError();
  std::move(remove).Cancel();
  return absl::OkStatus();
}

absl::Status Write(const std::string& path,
                   absl::Span<const absl::string_view> parts) {
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return LastError();
  if (exists && !S_ISREG(info.st_mode)) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return LastError();
    return WriteAndClose(fd, parts, /*sync=*/false);
  }
  MOE_ASSIGN_OR_RETURN(const std::string target, FollowLinks(path));
  return ReplaceFile(target, exists ? &info : nullptr, parts);
}

}  // namespace

absl::Status WriteOutputFile(absl::string_view flag, const std::string& path,
                             absl::Span<const absl::string_view> parts) {
  absl::Status status = Write(path, parts);
  if (status.ok()) return status;
  // What ErrnoToStatus makes of an empty message begins with ": ".
  return absl::Status(status.code(), absl::StrCat(flag, ": can't write ", path,
                                                  status.message()));
}

}  // namespace moe
