// A file mapped read-only into memory.
//
// Thread-safe once opened.

#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace moe {

class MappedFile {
 public:
  // Maps the whole of `path` as it is now, with the kernel told to read ahead.
  // Nothing is read yet. An empty file gives empty bytes.
  //
  // Errors: NOT_FOUND; PERMISSION_DENIED; INVALID_ARGUMENT if it is not a
  // regular file (a symbolic link to one is fine); RESOURCE_EXHAUSTED if the
  // address space does not take it. All name the file (not its folder) and,
  // where known, its size.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile() { Close(); }

  // The name without its folder.
  const std::string& name() const { return name_; }
  // [size at Open]; the address stays when the object moves.
  absl::Span<const uint8_t> bytes() const { return bytes_; }

  // Gives back the memory behind `part`, rounded outwards to pages: both this
  // process's pages and the kernel's cache of the file. Call it on what has
  // been copied elsewhere, so that loading a model holds it in memory once. The
  // bytes stay readable; reading them again fetches them from the disk.
  //
  // Requires: `part` lies in bytes().
  void DropPages(absl::Span<const uint8_t> part) const;

  // Whether the file still has the size it was mapped with. Touching a page
  // that a truncation took away kills the process (SIGBUS); asking before each
  // longer read makes that unlikely, and the report clear.
  //
  // Errors: DATA_LOSS with both sizes.
  absl::Status CheckSize() const;

 private:
  MappedFile() = default;
  void Close();

  std::string name_;
  int fd_ = -1;  // kept: giving back the kernel's cache needs it
  absl::Span<const uint8_t> bytes_;
};

}  // namespace moe
