// Matrix products by oneDNN. The only place that knows the library.
//
// Thread-safe. Each call runs on the calling thread alone: parallelism is the
// caller's, over tasks.

#pragma once

#include <cstdint>
#include <string>

#include "experts/base/matrix_view.h"

namespace moe {

// out = a * b^T, in float32.
//
// a:   [m, k]
// b:   [n, k], as the weights of a linear layer lie in a checkpoint
// out: [m, n], overwritten
// Requires: the shapes agree; out does not overlap a or b.
//           Ends the process with a message if oneDNN can't get memory.
void MatmulTransposed(ConstMatrix a, ConstMatrix b, Matrix out);

// The same of bfloat16 elements, given as their bits; sums are float32.
//
// Requires: also OneDnnMultipliesBF16().
void MatmulTransposed(MatrixView<const uint16_t> a,
                      MatrixView<const uint16_t> b, Matrix out);

// Whether the library multiplies bfloat16 on this CPU.
bool OneDnnMultipliesBF16();

// The version of the library at run time, e.g. "3.7.2".
std::string OneDnnVersion();

}  // namespace moe
