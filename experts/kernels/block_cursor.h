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

  // At args.k_begin. header_bytes: what lies in front of a group's lines.
  BlockCursor(const MulArgs& args, int64_t steps_per_line, int64_t header_bytes)
      : group_(args.group), header_bytes_(header_bytes) {
    const int64_t begin = args.k_begin / group_ * group_;
    group_end_ = begin + group_;
    const int64_t steps = begin - args.first_step;
    scales = args.panels + steps / group_ * header_bytes_ +
             steps / steps_per_line * kLineBytes;
    line = scales + header_bytes_ +
           (args.k_begin - begin) / steps_per_line * kLineBytes;
  }

  // After the lines up to step k, which ends a block.
  void Advance(int64_t k) {
    if (k != group_end_) return;
    group_end_ += group_;
    scales = line;
    line += header_bytes_;
  }

 private:
  int64_t group_;
  int64_t header_bytes_;
  int64_t group_end_;
};

}  // namespace moe
