#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/mul_float.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "experts/kernels/fill.h"
#include "experts/kernels/mul-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {

void FillFloatFormatsOfTarget(Kernels& kernels) {
  FillFormat<F32Format>(kernels);
  FillFormat<BF16Format>(kernels);
  FillFormat<F16Format>(kernels);
  FillUnpacked(kernels);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe {

HWY_EXPORT(FillFloatFormatsOfTarget);
void FillFloatFormats(Kernels& kernels) {
  HWY_DYNAMIC_DISPATCH(FillFloatFormatsOfTarget)(kernels);
}

}  // namespace moe
#endif
