#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <memory>
#include <vector>

#include "experts/kernels/fill.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/mul-inl.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {

void FillPropertiesOfTarget(Kernels& kernels) {
  kernels.isa = hwy::TargetName(HWY_TARGET);
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  kernels.has_fma = false;
#else
  kernels.has_fma = true;
#endif
  kernels.max_rows = kRows;
  kernels.fused_rows = kFusedRows;
}

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe {
namespace {

HWY_EXPORT(FillPropertiesOfTarget);

Kernels Fill() {
  Kernels kernels;
  HWY_DYNAMIC_DISPATCH(FillPropertiesOfTarget)(kernels);
  FillFloatFormats(kernels);
  Fill8BitFormats(kernels);
  Fill4BitFormats(kernels);
  FillActivate(kernels);
  FillRates(kernels);
  return kernels;
}

}  // namespace

const Kernels& BestKernels() {
  static const Kernels kernels = Fill();
  return kernels;
}

std::vector<const Kernels*> AllKernels() {
  static const std::vector<Kernels> tables = [] {
    std::vector<Kernels> filled;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::GetChosenTarget().Update(target);
      filled.push_back(Fill());
    }
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return filled;
  }();
  std::vector<const Kernels*> kernels;
  kernels.reserve(tables.size());
  for (const Kernels& table : tables) kernels.push_back(&table);
  return kernels;
}

}  // namespace moe
#endif
