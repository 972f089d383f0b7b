#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/mul_4bit.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "experts/kernels/fill.h"
#include "experts/kernels/mul-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {

void Fill4BitFormatsOfTarget(Kernels& kernels) {
  FillFormat<Int4Format>(kernels);
  FillFormat<Mxfp4Format>(kernels);
}

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe {

HWY_EXPORT(Fill4BitFormatsOfTarget);
void Fill4BitFormats(Kernels& kernels) {
  HWY_DYNAMIC_DISPATCH(Fill4BitFormatsOfTarget)(kernels);
}

}  // namespace moe
#endif
