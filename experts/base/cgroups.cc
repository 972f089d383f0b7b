#include "experts/base/cgroups.h"

#include <fstream>

namespace moe {

void ForEachCgroup(const std::string& root, const std::string& controller,
                   const std::function<void(const std::string& folder)>& fn) {
  const auto upwards = [&](const std::string& mount, std::string path) {
    std::string folder = root + "/sys/fs/cgroup";
    folder += mount;
    folder += path;
    while (true) {
      fn(folder);
      if (path.empty()) return;
      const size_t parent = path.find_last_of('/');
      folder.resize(folder.size() - (path.size() - parent));
      path.resize(parent);
    }
  };
  std::ifstream cgroups(root + "/proc/self/cgroup");
  // Lines are "ID:CONTROLLERS:PATH"; v2 has ID 0 and no controllers.
  for (std::string line; std::getline(cgroups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/" || path.find("/..") != std::string::npos) path.clear();
    if (!path.empty() && path.front() != '/') path.clear();
    if (controllers.empty()) {
      upwards("", path);
      upwards("/unified", path);
    } else if (("," + controllers + ",").find("," + controller + ",") !=
               std::string::npos) {
      upwards("/" + controller, path);
      if (controllers != controller) upwards("/" + controllers, path);
    }
  }
}

}  // namespace moe
