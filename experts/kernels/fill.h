// How the tables of kernels are filled: one function per source file that is
// compiled for each instruction set. Each enters the kernels of the one that
// Highway has chosen.

#pragma once

#include "experts/kernels/kernels.h"

namespace moe {

void FillFloatFormats(Kernels& kernels);  // f32, bf16, f16
void Fill8BitFormats(Kernels& kernels);   // int8, fp8
void Fill4BitFormats(Kernels& kernels);   // int4, mxfp4
void FillActivate(Kernels& kernels);
void FillPackLines(Kernels& kernels);
void FillRates(Kernels& kernels);

}  // namespace moe
