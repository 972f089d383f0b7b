#include "tests/experts/kernels/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace moe {
namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

int64_t NumAllocations() { return num_allocations; }

}  // namespace moe

void* operator new(std::size_t size) {
  moe::num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size)) return p;
  std::abort();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
