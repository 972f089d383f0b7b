#include "experts/kernels/x86.h"

#if HWY_ARCH_X86_64

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>

namespace moe {
namespace {

// Leaf 7 of CPUID, as in Intel's manual, volume 2. That the system keeps the
// AVX and AVX-512 registers is the caller's knowledge: Highway looks.
X86Features Detect() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const auto has = [](unsigned value, std::initializer_list<int> bits) {
    return std::all_of(bits.begin(), bits.end(),
                       [&](int bit) { return (value >> bit & 1U) != 0; });
  };
  X86Features features;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return features;
  features.amd = ebx == signature_AMD_ebx && edx == signature_AMD_edx &&
                 ecx == signature_AMD_ecx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return features;
  // Base and extended family.
  constexpr unsigned kZen3And4 = 0x19;
  features.zen4 =
      features.amd && (eax >> 8 & 0xfU) + (eax >> 20 & 0xffU) == kZen3And4;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) return features;
  features.avx_vnni = has(eax, {4});
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return features;
  if (!has(ebx, {16, 17, 30, 31})) return features;  // F, DQ, BW, VL
  features.vnni = has(ecx, {11});
  if (features.vnni && has(edx, {22, 24, 25})) {  // BF16, TILE, INT8
    // Linux saves the tiles of processes that have asked for it:
    // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
    constexpr int kRequestPermission = 0x1023;
    constexpr int kTileData = 18;
    features.amx = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }
  return features;
}

}  // namespace

const X86Features& CpuFeatures() {
  static const X86Features features = Detect();
  return features;
}

}  // namespace moe

#endif  // HWY_ARCH_X86_64
