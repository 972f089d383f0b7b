// What was measured to be fastest on which CPU, where it is not what the
// kernels begin with.

#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include "experts/base/weight_format.h"
#include "experts/kernels/kernels.h"

namespace moe {
namespace {

// Single rows of a format take up to `panels` panels at once.
void LimitPanelsOfARow(FormatKernels& format, int panels) {
  if (panels < 4) format.mul[1][2] = nullptr;
  if (panels < 2) format.mul[1][1] = nullptr;
}

// It fetches well by itself, and what is fetched far ahead holds the entries
// for misses of the L1 cache that it needs for it.
void TuneForZen4(Kernels& kernels) {
  for (FormatKernels& format : kernels.formats) {
    format.fetch_for_row = format.fetch_for_rows = {.far = 4096, .near = 0};
  }
  for (const auto f :
       {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kInt8,
        WeightFormat::kFp8, WeightFormat::kInt4, WeightFormat::kMxfp4}) {
    // Loads don't hold back half as many multiplications.
    for (int rows = 7; rows <= kMaxStripRows; ++rows) {
      kernels[f].mul[rows][1] = nullptr;
    }
  }
  if (kernels.isa != "VNNI") return;
  kernels[WeightFormat::kInt8].max_rows = 6;
  // Codes of 4 bits come in best as one stream that nobody fetches ahead.
  for (const auto f : {WeightFormat::kInt4, WeightFormat::kMxfp4}) {
    kernels[f].max_rows = 6;
    kernels[f].fetch_for_row.far = kernels[f].fetch_for_rows.far = 0;
    LimitPanelsOfARow(kernels[f], 1);
  }
}

// Single rows come in best as few streams that nobody fetches twice.
void TuneForZen5(Kernels& kernels) {
  constexpr FetchAhead kOnce = {.far = 8192, .near = 0};
  for (FormatKernels& format : kernels.formats) format.fetch_for_row = kOnce;
  kernels[WeightFormat::kF32].fetch_for_rows = kOnce;
  for (const auto f :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16}) {
    LimitPanelsOfARow(kernels[f], 2);
  }
  if (kernels.isa != "VNNI") return;
  for (const auto f :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kMxfp4}) {
    LimitPanelsOfARow(kernels[f], 1);
  }
}

}  // namespace

void TuneForCpu(const X86Features& cpu, Kernels& kernels) {
  if (cpu.zen4) {
    TuneForZen4(kernels);
  } else if (cpu.amd) {
    TuneForZen5(kernels);
  } else {
    // To widen each code costs Intel's CPUs more than scratch memory does once
    // some strips share it: 128 rows took 10 to 15 % less.
    kernels[WeightFormat::kFp8].fused_rows = 48;
  }
}

}  // namespace moe

#endif  // HWY_ARCH_X86_64
