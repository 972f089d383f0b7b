// A range of bytes in the pieces in which the network delivered it.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/types/span.h"

namespace moe {

// A view; the pieces and their memory belong to someone else.
class WireBytes {
 public:
  // Piece of a message: its bytes from position `begin` on.
  struct Piece {
    size_t begin;
    const char* data;
    size_t size;
  };

  WireBytes() = default;
  // Bytes that lie together.
  // NOLINTNEXTLINE(google-explicit-constructor): as for string views
  WireBytes(const char* data) : whole_(data) {}
  // The bytes of a message from `first` on. Pieces are in order, without gaps.
  WireBytes(absl::Span<const Piece> pieces, size_t first)
      : pieces_(pieces), first_(first) {}

  // The bytes from `offset` on.
  WireBytes From(size_t offset) const {
    WireBytes rest = *this;
    if (whole_ != nullptr) {
      rest.whole_ += offset;
    } else {
      rest.first_ += offset;
    }
    return rest;
  }

  // The first `size` bytes if they lie together, else null.
  const char* Together(size_t size) const {
    if (whole_ != nullptr || size == 0) return whole_;
    const Piece* piece = Find();
    return first_ - piece->begin + size <= piece->size
               ? piece->data + (first_ - piece->begin)
               : nullptr;
  }

  // Copies the first `size` bytes.
  void CopyTo(void* to, size_t size) const {
    if (size == 0) return;
    if (whole_ != nullptr) {
      std::memcpy(to, whole_, size);
      return;
    }
    auto* out = static_cast<char*>(to);
    const Piece* piece = Find();
    for (size_t skip = first_ - piece->begin; size > 0; ++piece, skip = 0) {
      const size_t run = std::min(size, piece->size - skip);
      std::memcpy(out, piece->data + skip, run);
      out += run;
      size -= run;
    }
  }

 private:
  // The piece that holds first_.
  const Piece* Find() const {
    const auto after = std::upper_bound(
        pieces_.begin(), pieces_.end(), first_,
        [](size_t at, const Piece& piece) { return at < piece.begin; });
    return &*after - 1;
  }

  const char* whole_ = nullptr;
  absl::Span<const Piece> pieces_;
  size_t first_ = 0;
};

}  // namespace moe
