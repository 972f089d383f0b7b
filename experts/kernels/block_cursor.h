// Steps through the groups and blocks of a packed panel with scales.

#pragma once

#include <cstdint>

#include "experts/base/dtype.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/packed_matrix.h"

namespace moe {

// Public members: what the next block needs. Of several panels, those of the
// first one; the others lie MulArgs::panel_stride apart.
struct BlockCursor {
  const uint8_t* scales;  // of the group
  const uint8_t* line;    // the next one; the caller moves it

  // At args.k_begin.
  BlockCursor(const MulArgs& args, int64_t steps_per_line)
      : group_(args.group),
        scale_bytes_(kPanelWidth * DTypeBytes(args.scale_dtype)) {
    const int64_t begin = args.k_begin / group_ * group_;
    group_end_ = begin + group_;
    scales = args.panels + args.k_begin / group_ * scale_bytes_ +
             begin / steps_per_line * kLineBytes;
    line = scales + scale_bytes_ +
           (args.k_begin - begin) / steps_per_line * kLineBytes;
  }

  // After the lines up to step k, which ends a block.
  void Advance(int64_t k) {
    if (k != group_end_) return;
    group_end_ += group_;
    scales = line;
    line += scale_bytes_;
  }

 private:
  int64_t group_;
  int64_t scale_bytes_;
  int64_t group_end_;
};

}  // namespace moe
