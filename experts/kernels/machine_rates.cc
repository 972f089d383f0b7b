#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/kernels/machine_rates.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "experts/kernels/fill.h"
#include "experts/kernels/machine_rates.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace moe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Enough independent chains to hide the latency of two FMA units.
constexpr int kChains = 10;

template <int... i>
HWY_INLINE float FmaLoop(int64_t steps, std::integer_sequence<int, i...>) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> chains[kChains] = {hn::Set(d, 1.0F + i)...};
  const auto factor = hn::Set(d, 0.999F);
  const auto term = hn::Set(d, 0.5F);
  for (int64_t step = 0; step < steps; ++step) {
    ((chains[i] = hn::MulAdd(chains[i], factor, term)), ...);
  }
  auto sum = hn::Zero(d);
  ((sum = hn::Add(sum, chains[i])), ...);
  return hn::GetLane(sum);
}

float Fma(int64_t steps) {
  return FmaLoop(steps, std::make_integer_sequence<int, kChains>());
}

double FlopsPerStep() {
  return 2.0 * kChains *
         static_cast<double>(hn::Lanes(hn::ScalableTag<float>()));
}

// Four streams at once keep more lines on their way than one does. Requires:
// bytes is a multiple of 512.
float Read(const uint8_t* memory, int64_t bytes) {
  constexpr int64_t kStreams = 4;
  const hn::CappedTag<float, 16> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t stride = bytes / kStreams;
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  for (int64_t line = 0; line < stride; line += 128) {
    for (int64_t s = 0; s < kStreams; ++s) {
      const uint8_t* at = memory + s * stride + line;
      hwy::Prefetch(at + 4096);
      hwy::Prefetch(at + 4096 + 64);
      const auto* floats = reinterpret_cast<const float*>(at);
      for (int64_t i = 0; i < 16; i += lanes) {
        a = hn::Xor(a, hn::LoadU(d, floats + i));
        b = hn::Xor(b, hn::LoadU(d, floats + 16 + i));
      }
    }
  }
  return hn::GetLane(hn::Xor(a, b));
}

void FillRatesOfTarget(Kernels& kernels) {
  kernels.fma = &Fma;
  kernels.flops_per_step = FlopsPerStep();
  kernels.read = &Read;
}

}  // namespace HWY_NAMESPACE
}  // namespace moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe {

HWY_EXPORT(FillRatesOfTarget);
void FillRates(Kernels& kernels) {
  HWY_DYNAMIC_DISPATCH(FillRatesOfTarget)(kernels);
}

std::vector<absl::Span<const uint8_t>> SharesOf(
    absl::Span<const uint8_t> memory, int num_threads) {
  constexpr size_t kPage = 4096;
  const auto threads = static_cast<size_t>(num_threads);
  const size_t share = memory.size() / threads / kPage * kPage;
  std::vector<absl::Span<const uint8_t>> shares(threads, memory);
  if (share > 0) {
    for (size_t i = 0; i < threads; ++i) {
      shares[i] = memory.subspan(i * share, share);
    }
  }
  return shares;
}

MachineRates MeasureMachine(const Kernels& kernels,
                            absl::Span<const absl::Span<const uint8_t>> memory,
                            ParallelFor parallel_for, int rounds) {
  const auto num_threads = static_cast<int64_t>(memory.size());
  const int64_t ends[] = {num_threads};
  const auto seconds_of = [&](auto task_fn) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(ends, [&](int64_t task, int /*worker*/) { task_fn(task); });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start)
        .count();
  };
  // Rounds of two milliseconds or a little more: short enough for some to run
  // undisturbed, long enough for what starting the threads takes not to count.
  // How much work that is, the first rounds find out.
  constexpr double kRoundSeconds = 0.002;
  const auto grown = [](int64_t work, double seconds) {
    if (seconds >= kRoundSeconds) return work;
    return work *
           static_cast<int64_t>(std::clamp(kRoundSeconds / seconds, 2.0, 8.0));
  };
  size_t least = memory.front().size();
  for (const auto& share : memory) least = std::min(least, share.size());
  const auto slice = static_cast<int64_t>(least / 512 * 512);
  int64_t steps = 1024;
  int64_t part = std::min<int64_t>(slice, 1 << 20);
  int64_t offset = 0;
  MachineRates rates;
  // Results that a compiler must assume are used.
  volatile float sink = 0;
  for (int round = 0; round < rounds; ++round) {
    const double fma = seconds_of([&](int64_t) { sink = kernels.fma(steps); });
    rates.peak_gflop_per_s = std::max(rates.peak_gflop_per_s,
                                      static_cast<double>(num_threads * steps) *
                                          kernels.flops_per_step / fma * 1e-9);
    steps = grown(steps, fma);
    const double read = seconds_of([&](int64_t task) {
      sink = kernels.read(memory[task].data() + offset, part);
    });
    // A short round may have read what a cache still held.
    if (read >= kRoundSeconds / 2 || part == slice) {
      rates.read_gb_per_s =
          std::max(rates.read_gb_per_s,
                   static_cast<double>(num_threads * part) / read * 1e-9);
    }
    offset += part;
    part = std::min(slice, grown(part, read));
    if (offset + part > slice) offset = 0;
  }
  return rates;
}

}  // namespace moe
#endif
