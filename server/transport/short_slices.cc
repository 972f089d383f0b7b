#include "server/transport/short_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace moe {
namespace {

constexpr uint64_t kShortSlice = 100'000;  // nanoseconds; the least there is

// As in linux/sched/types.h, which can't be included beside sched.h everywhere;
// the C library has no wrapper.
struct SchedAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;  // SCHED_OTHER: the slice in nanoseconds
  uint64_t deadline;
  uint64_t period;
};

// The attributes of the calling thread, if its slice can be chosen: older
// kernels say 0.
std::optional<SchedAttributes> Attributes() {
  SchedAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0 ||
      attributes.policy != SCHED_OTHER || attributes.runtime == 0) {
    return std::nullopt;
  }
  return attributes;
}

bool SetSlice(uint64_t nanoseconds) {
  std::optional<SchedAttributes> attributes = Attributes();
  if (!attributes.has_value()) return false;
  attributes->runtime = nanoseconds;
  return syscall(SYS_sched_setattr, 0, &*attributes, 0) == 0;
}

}  // namespace

std::optional<uint64_t> ShortSlices::Current() {
  const std::optional<SchedAttributes> attributes = Attributes();
  if (!attributes.has_value()) return std::nullopt;
  return attributes->runtime;
}

ShortSlices::ShortSlices() : before_(Current()) {
  if (before_.has_value() && !SetSlice(kShortSlice)) before_.reset();
}

ShortSlices::~ShortSlices() {
  if (before_.has_value()) SetSlice(*before_);
}

}  // namespace moe
