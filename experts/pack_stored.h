// From stored matrices to packed ones: which layout, and the panels.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>

#include "experts/base/weight_format.h"
#include "experts/checkpoint/stored_matrix.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// The layout for `matrix` in `format`. kAuto keeps the stored precision: codes
// and scales where a packed format can hold them as they are, float32 where
// none can (blocks that do not fall on multiples of 32 columns).
PackedLayout LayoutFor(WeightFormat format, const StoredMatrix& matrix);

// Packs one panel. Carries codes over where the layout is that of the stored
// coding, else widens and converts.
//
// layout:   from LayoutFor, or that of another matrix of the same shape.
// dst:      layout.panel_bytes(), overwritten.
void PackStoredPanel(const PackedLayout& layout, const StoredMatrix& matrix,
                     int64_t panel, uint8_t* dst);

}  // namespace moe
