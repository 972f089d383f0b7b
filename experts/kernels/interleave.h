// Strips for the arithmetic Chain (see kernels.h).

#pragma once

#include <cstdint>

#include "experts/kernels/kernels.h"

namespace moe {

int64_t InterleavedFloats(int64_t k, int64_t block);

// strip[step][row] = the rows, times their scales, and zeros up to a multiple
// of kStepAlignment steps.
void InterleaveRows(const PackRowsArgs& args);

// The same, and behind it the sum of each block and row, [block][row]: for
// formats with zero points.
int64_t InterleavedAndSummedFloats(int64_t k, int64_t block);
void InterleaveAndSumRows(const PackRowsArgs& args);

}  // namespace moe
