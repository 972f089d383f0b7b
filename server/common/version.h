// What this build is. The build system gives the values.

#pragma once

namespace moe {

extern const char kVersion[];
extern const char kCommit[];

}  // namespace moe
