// Packing one column after the other in plain scalar code: what every
// instruction set must agree with, byte for byte. Slow.

#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

using CodeOf = absl::FunctionRef<uint8_t(int64_t row, int64_t col)>;

// As PackPanel and PackCodedPanel, with one code at a time.
void ReferencePackPanel(const PackedLayout& layout, RowReader read,
                        int64_t panel, uint8_t* dst);
void ReferencePackCodedPanel(const PackedLayout& layout, CodeOf code,
                             ScaleReader scale, ZeroPointReader zero_point,
                             int64_t panel, uint8_t* dst);

}  // namespace moe
