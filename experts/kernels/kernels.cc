#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <vector>

#include "experts/base/no_destructor.h"
#include "experts/kernels/fill.h"
#include "experts/kernels/kernels.h"
#include "experts/kernels/x86.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {

void FillPropertiesOfTarget(Kernels& kernels) {
  kernels.isa = hwy::TargetName(HWY_TARGET);
  kernels.same_bytes_everywhere =
      HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128;
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
  FillPackLines(kernels);
  FillRates(kernels);
  return kernels;
}

std::vector<Kernels> FillAll() {
  std::vector<Kernels> tables;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::GetChosenTarget().Update(target);
    const size_t first = tables.size();
    const Kernels kernels = Fill();
#if HWY_ARCH_X86_64
    if (target == HWY_AVX3 && CpuFeatures().amx) {
      UseAmx(tables.emplace_back(kernels));
    }
    if (target == HWY_AVX3 && CpuFeatures().vnni) {
      UseVnni(tables.emplace_back(kernels));
    }
    if (target == HWY_AVX2 && CpuFeatures().avx_vnni) {
      UseAvxVnni(tables.emplace_back(kernels));
    }
#endif
    tables.push_back(kernels);
#if HWY_ARCH_X86_64
    if (target == HWY_AVX3) {
      for (size_t i = first; i < tables.size(); ++i) {
        TuneForCpu(CpuFeatures(), tables[i]);
      }
    }
#endif
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return tables;
}

}  // namespace

const Kernels& BestKernels() { return *AllKernels().front(); }

const Kernels& DeterministicKernels() {
  for (const Kernels* kernels : AllKernels()) {
    if (kernels->same_bytes_everywhere) return *kernels;
  }
  return *AllKernels().back();
}

const std::vector<const Kernels*>& AllKernels() {
  static const NoDestructor<std::vector<Kernels>> tables(FillAll());
  static const NoDestructor<std::vector<const Kernels*>> pointers([] {
    std::vector<const Kernels*> all;
    all.reserve(tables->size());
    for (const Kernels& table : *tables) all.push_back(&table);
    return all;
  }());
  return *pointers;
}

}  // namespace moe
#endif
