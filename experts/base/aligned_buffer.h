// Owning, cache-line aligned, uninitialised memory for trivially copyable
// elements.
//
// Thread-compatible, like std::vector.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "experts/base/check.h"

namespace moe {

// Alignment in bytes: a cache line, and the widest SIMD vector.
inline constexpr std::size_t kBufferAlignment = 64;

template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size) { Grow(size); }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }

  // Makes room for at least `size` elements and returns the data. The contents
  // are lost if it has to grow, and undefined where never written. Allocates
  // only when `size` exceeds everything asked for before.
  T* Grow(int64_t size) {
    if (size > size_) {
      data_.reset();  // Give back before taking: never hold both.
      const auto bytes = static_cast<std::size_t>(size) * sizeof(T);
      data_.reset(static_cast<T*>(std::aligned_alloc(
          kBufferAlignment, (bytes + kBufferAlignment - 1) / kBufferAlignment *
                                kBufferAlignment)));
      MOE_CHECK(data_ != nullptr);
      size_ = size;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

}  // namespace moe
