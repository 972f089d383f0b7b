#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>

namespace moe {
namespace {

// Intel's manual, volume 2, CPUID leaf 7. That the system keeps the AVX-512
// registers is the caller's knowledge: Highway looks.
bool DetectAmx() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const auto has = [](unsigned value, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(),
                       [&](int bit) { return (value >> bit & 1U) != 0; });
  };
  const bool avx512 = has(ebx, {16, 17, 30, 31});  // F, DQ, BW, VL
  const bool vnni = has(ecx, {11});
  const bool amx = has(edx, {22, 24, 25});  // BF16, TILE, INT8
  if (!avx512 || !vnni || !amx) return false;
  // Linux saves the tiles of processes that have asked for it:
  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool CpuHasAmx() {
  static const bool has_amx = DetectAmx();
  return has_amx;
}

}  // namespace moe

#endif  // HWY_ARCH_X86_64
