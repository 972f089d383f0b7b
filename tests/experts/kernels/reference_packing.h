// Packing one column after the other in plain scalar code: what every
// instruction set must agree with, byte for byte. Slow.

#pragma once

#include <cstdint>

#include "experts/kernels/packed_matrix.h"

namespace moe {

// As PackPanel and PackCodedPanel.
void ReferencePackPanel(const PackedLayout& layout, RowReader read,
                        int64_t panel, uint8_t* dst);
void ReferencePackCodedPanel(const PackedLayout& layout, CodeReader codes,
                             ScaleReader scale, int64_t panel, uint8_t* dst);

}  // namespace moe
