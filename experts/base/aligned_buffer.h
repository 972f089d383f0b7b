// Owning, cache-line aligned, uninitialised memory for trivially copyable
// elements. Large buffers ask for huge pages: weights are read as streams, and
// translating their addresses would cost as much as reading them.
//
// Thread-compatible, like std::vector.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "experts/base/check.h"

namespace moe {

// Alignment in bytes: a cache line, and the widest SIMD vector.
inline constexpr std::size_t kBufferAlignment = 64;
// A huge page; buffers of some of them are aligned to it.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Memory for `bytes`, uninitialised; throws std::bad_alloc as operator new
// does. Give it back with std::free.
inline void* AllocateAligned(std::size_t bytes) {
  const bool huge = bytes >= 4 * kHugePage;
  const std::size_t alignment = huge ? kHugePage : kBufferAlignment;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  // A wish: where it is not granted, pages stay small.
  if (huge) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size) { Grow(size); }
  // What has been moved from is empty, and may grow again.
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

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
      size_ = 0;      // What cannot be had leaves an empty buffer.
      const auto bytes = static_cast<std::size_t>(size) * sizeof(T);
      data_.reset(static_cast<T*>(AllocateAligned(bytes)));
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
