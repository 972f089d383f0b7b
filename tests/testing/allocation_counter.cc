#include "tests/testing/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace moe {
namespace {

// Constant-initialised: operator new may run before anything else does.
std::atomic<int64_t> allocation_count{0};

void* TryAllocate(std::size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}

void* Allocate(std::size_t size) {
  void* const p = TryAllocate(size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

int64_t AllocationCount() {
  return allocation_count.load(std::memory_order_relaxed);
}

}  // namespace moe

void* operator new(std::size_t size) { return moe::Allocate(size); }
void* operator new[](std::size_t size) { return moe::Allocate(size); }
// The standard library's sorts take their temporary memory this way.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return moe::TryAllocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return moe::TryAllocate(size);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

// The linker's --wrap=aligned_alloc sends calls here.
extern "C" void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
extern "C" void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  moe::allocation_count.fetch_add(1, std::memory_order_relaxed);
  return __real_aligned_alloc(alignment, size);
}
