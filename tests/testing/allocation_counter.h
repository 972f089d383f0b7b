// Counts what this program takes from the heap, for tests of code that must
// take nothing. Linked into a test, it replaces operator new for the whole
// program and stands before aligned_alloc in the project's own code.

#pragma once

#include <cstdint>

namespace moe {

// Number of allocations by any thread since the start. Thread-safe.
int64_t AllocationCount();

}  // namespace moe
