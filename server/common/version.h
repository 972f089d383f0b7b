// What this build is. The build system gives the values.

#pragma once

namespace moe {

inline constexpr char kVersion[] = MOE_VERSION;
inline constexpr char kCommit[] = MOE_COMMIT;

}  // namespace moe
