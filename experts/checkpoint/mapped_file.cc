#include "experts/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "experts/base/check.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

constexpr size_t kLargestCacheUnit = size_t{2} << 20;

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile file;
  file.name_ = BaseName(path);
  // O_NONBLOCK: opening a pipe must not wait for somebody to write into it.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return absl::ErrnoToStatus(errno, file.name_);
  struct stat status;
  if (fstat(file.fd_, &status) != 0) {
    return absl::ErrnoToStatus(errno, file.name_);
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.name_, ": want a regular file, got ",
        S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket"));
  }
  if (status.st_size == 0) return file;

  const auto size = static_cast<size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd_, 0);
  if (address == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file.name_, ": cannot map ", size,
                     " bytes; is the address space limited (ulimit -v)?"));
  }
  madvise(address, size, MADV_SEQUENTIAL);  // A hint: failing changes nothing.
  file.bytes_ = absl::MakeConstSpan(static_cast<const uint8_t*>(address), size);
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Close();
    name_ = std::move(other.name_);
    fd_ = std::exchange(other.fd_, -1);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void MappedFile::Close() {
  if (!bytes_.empty()) {
    munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  }
  if (fd_ >= 0) close(fd_);
}

void MappedFile::DropPages(absl::Span<const uint8_t> part) const {
  if (part.empty()) return;
  MOE_CHECK(part.data() >= bytes_.data() &&
            part.data() + part.size() <= bytes_.data() + bytes_.size());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(part.data() - bytes_.data());
  const size_t first = offset / page * page;
  const size_t last =
      std::min(bytes_.size(), (offset + part.size() + page - 1) / page * page);
  // Both are hints. The mapping goes first: the kernel keeps cached pages that
  // are mapped.
  madvise(const_cast<uint8_t*>(bytes_.data()) + first, last - first,
          MADV_DONTNEED);
  // The cache consists of units of up to 2 MiB, and one that is only partly in
  // the range stays. What lies before the range has most likely been consumed,
  // too, so this takes the unit that the part before it left behind.
  const size_t unit = first / kLargestCacheUnit * kLargestCacheUnit;
  posix_fadvise(fd_, static_cast<off_t>(unit), static_cast<off_t>(last - unit),
                POSIX_FADV_DONTNEED);
}

absl::Status MappedFile::CheckSize() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) return absl::ErrnoToStatus(errno, name_);
  if (status.st_size != static_cast<off_t>(bytes_.size())) {
    return absl::DataLossError(absl::StrCat(name_, ": had ", bytes_.size(),
                                            " bytes when it was opened, has ",
                                            status.st_size, " now"));
  }
  return absl::OkStatus();
}

}  // namespace moe
