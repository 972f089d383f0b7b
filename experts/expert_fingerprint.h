// Tells whether two processes hold the same expert, without sending it.

#pragma once

#include <cstdint>

#include "experts/base/expert_spec.h"
#include "experts/base/weight_format.h"
#include "experts/expert_engine.h"
#include "experts/stored_expert.h"

namespace moe {

// A hash of what an expert computes: its arithmetic, the shape, stored coding
// and a sample of the elements of each projection, all biases, and how this
// process will hold it. Processes with equal fingerprints give the same bytes
// for a row, if their CPUs have the same kernels.
//
// Reads two rows of each projection, no more: experts of another checkpoint, or
// of another step of its training, differ in them; one changed weight may not.
//
// Thread-safe: a pure function.
uint64_t ExpertFingerprint(const ExpertSpec& spec, const StoredExpert& expert,
                           ExpertEngine engine, WeightFormat format);

}  // namespace moe
