#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace moe {

ServiceManager ServiceManager::FromEnvironment() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread runs yet.
  const char* socket = getenv("NOTIFY_SOCKET");
  return ServiceManager(socket == nullptr ? "" : socket);
}

void ServiceManager::Tell(absl::string_view state) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  std::copy(socket_.begin(), socket_.end(), address.sun_path);
  // An abstract name begins with a zero byte.
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  (void)sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), size);
  close(fd);
}

}  // namespace moe
