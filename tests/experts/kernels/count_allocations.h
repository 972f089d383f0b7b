// Counts the calls of operator new in this test program.

#pragma once

#include <cstdint>

namespace moe {

// Since the start of the program, on all threads.
int64_t NumAllocations();

}  // namespace moe
