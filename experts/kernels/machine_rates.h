// What this machine can do at most: the two lines of the roofline.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/run_experts.h"

namespace moe {

struct MachineRates {
  double read_gb_per_s = 0;     // 1e9 bytes per second, all threads together
  double peak_gflop_per_s = 0;  // float32 FMA, all threads together
};

// Equal parts of `memory`, a page or more each, one for each thread; of less
// memory than that, all of it for each.
std::vector<absl::Span<const uint8_t>> SharesOf(
    absl::Span<const uint8_t> memory, int num_threads);

// Measures for two times two milliseconds a round: the best round, since
// whatever else runs on the machine only ever makes one slower. The first few
// rounds (at most ten) are shorter: they find out how much work that is.
//
// memory:   what each thread reads from front to back, [num_threads], as much
//           of each as the smallest has; 512 bytes at least, and together much
//           more than the caches hold if the rate is to be that of the memory.
// parallel_for: runs one task per thread at once, task i on memory[i].
MachineRates MeasureMachine(const Kernels& kernels,
                            absl::Span<const absl::Span<const uint8_t>> memory,
                            ParallelFor parallel_for, int rounds = 64);

}  // namespace moe
