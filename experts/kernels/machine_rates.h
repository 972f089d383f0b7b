// What this machine can do at most: the two lines of the roofline.

#pragma once

#include <cstdint>

#include "experts/kernels/kernels.h"
#include "experts/kernels/run_experts.h"

namespace moe {

struct MachineRates {
  double read_gb_per_s = 0;     // 1e9 bytes per second, all threads together
  double peak_gflop_per_s = 0;  // float32 FMA, all threads together
};

// Measures for two times two milliseconds a round: the best round, since
// whatever else runs on the machine only ever makes one slower. The first few
// rounds (at most ten) are shorter: they find out how much work that is.
//
// memory:   [bytes], read from front to back; 512 at least, and much more than
//           the caches hold if the rate is to be that of the memory.
// parallel_for: runs one task per thread at once.
MachineRates MeasureMachine(const Kernels& kernels, const uint8_t* memory,
                            int64_t bytes, int num_threads,
                            ParallelFor parallel_for, int rounds = 64);

}  // namespace moe
