// The cgroups whose limits bind this process.

#pragma once

#include <functional>
#include <string>

namespace moe {

// Calls `fn` with the folder of each cgroup, version 1 or 2, that can limit
// this process by `controller` ("cpu", "memory"): a limit binds every cgroup
// below the one it is set on, hence all on the way up. Folders may not exist.
//
// root: where /proc and /sys are; "" but in tests.
void ForEachCgroup(const std::string& root, const std::string& controller,
                   const std::function<void(const std::string& folder)>& fn);

}  // namespace moe
