#include "server/common/steady_time.h"

#include <algorithm>

#include "experts/base/no_destructor.h"

namespace moe {
namespace {

class RealClock final : public SteadyClock {
 public:
  SteadyTime Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const SteadyClock& SteadyClock::Real() {
  static const NoDestructor<RealClock> clock;
  return *clock;
}

SteadyTime After(SteadyTime now, std::chrono::duration<double> time) {
  // Nanoseconds of centuries would overflow.
  constexpr std::chrono::duration<double> kForever(1e9);
  if (time > kForever) return SteadyTime::max();
  return now + std::chrono::duration_cast<SteadyTime::duration>(
                   std::max(time, -kForever));
}

}  // namespace moe
