// The non-linear functions between the projections, one element at a time.
//
// Thread-safe: pure functions.

#pragma once

#include "experts/base/expert_spec.h"

namespace moe {

// act(z), as experts/base/expert_spec.h defines it.
float Activate(const ActivationSpec& spec, float z);

// gate[i] and up[i] > h[i], for a gated expert, clamps and offset included.
// h may be gate or up.
void ActivateGated(const ActivationSpec& spec, const float* gate,
                   const float* up, int64_t size, float* h);

// h[i] = act(up[i]), for a classic expert. h may be up.
void ActivateClassic(const ActivationSpec& spec, const float* up, int64_t size,
                     float* h);

}  // namespace moe
