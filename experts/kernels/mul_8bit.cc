#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/mul_8bit.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "experts/kernels/fill.h"
#include "experts/kernels/mul-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {

void Fill8BitFormatsOfTarget(Kernels& kernels) {
  FillFormat<Int8Format>(kernels);
  FillFormat<Fp8Format>(kernels);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe {

HWY_EXPORT(Fill8BitFormatsOfTarget);
void Fill8BitFormats(Kernels& kernels) {
  HWY_DYNAMIC_DISPATCH(Fill8BitFormatsOfTarget)(kernels);
}

}  // namespace moe
#endif
