#include "server/common/steady_time.h"

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

SteadyTime ToSteady(std::chrono::system_clock::time_point time,
                    std::chrono::system_clock::time_point system_now,
                    SteadyTime now) {
  // Compared in seconds: "never" would overflow.
  const std::chrono::duration<double> left =
      std::chrono::duration<double>(time.time_since_epoch()) -
      std::chrono::duration<double>(system_now.time_since_epoch());
  constexpr double kForever = 1e9;  // seconds
  if (left.count() > kForever) return SteadyTime::max();
  return now + std::chrono::duration_cast<SteadyTime::duration>(left);
}

}  // namespace moe
