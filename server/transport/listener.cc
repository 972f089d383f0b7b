#include "server/transport/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"

namespace moe {
namespace {

constexpr int kBacklog = 1024;
constexpr absl::string_view kUnixPrefix = "unix:";

absl::Status CannotListen(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("--listen_address: can't listen on ", address, ": ", why));
}

std::string ErrorText(int error) {
  switch (error) {
    case EADDRINUSE:
      return "it is in use";
    case EACCES:
      return "not allowed for this user";
    default:
      return absl::StrCat("error ", error);
  }
}

int PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) !=
      0) {
    return 0;
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

void SetOption(int socket, int level, int option, int value) {
  // Failure costs speed at most.
  (void)setsockopt(socket, level, option, &value, sizeof(value));
}

}  // namespace

void PauseAccepting(int stop) {
  constexpr int kPauseMs = 10;
  pollfd fd = {.fd = stop, .events = POLLIN, .revents = 0};
  (void)poll(&fd, 1, kPauseMs);
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(
    const ListenerOptions& options) {
  std::unique_ptr<Listener> listener(new Listener(options));
  absl::string_view path = options.address;
  if (absl::ConsumePrefix(&path, kUnixPrefix)) {
    MOE_RETURN_IF_ERROR(listener->BindUnix(std::string(path)));
  } else {
    MOE_RETURN_IF_ERROR(listener->BindTcp());
  }
  listener->wake_fd_ = eventfd(0, EFD_CLOEXEC);
  MOE_CHECK(listener->wake_fd_ >= 0);
  return listener;
}

absl::Status Listener::BindTcp() {
  const std::string& address = options_.address;
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  std::string port = address.substr(colon + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &list) != 0) {
    return CannotListen(address, "no such host");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list,
                                                             freeaddrinfo);
  // A name may stand for several addresses, as localhost does: all of them, on
  // one port.
  int bound_port = 0;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    const int fd =
        socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;  // no IPv6 here
    SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);  // connections inherit it
    if (one->ai_family == AF_INET6) {
      // "::" alone means IPv4 as well.
      SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, list->ai_next != nullptr);
      if (bound_port != 0) {
        reinterpret_cast<sockaddr_in6*>(one->ai_addr)->sin6_port =
            htons(static_cast<uint16_t>(bound_port));
      }
    } else if (bound_port != 0) {
      reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_port =
          htons(static_cast<uint16_t>(bound_port));
    }
    if (bind(fd, one->ai_addr, one->ai_addrlen) != 0 ||
        listen(fd, kBacklog) != 0) {
      error = errno;
      close(fd);
      if (error == EADDRINUSE || error == EACCES) break;
      continue;
    }
    sockets_.push_back(fd);
    bound_port = PortOf(fd);
    error = 0;
  }
  if (error != 0) return CannotListen(address, ErrorText(error));
  address_ = absl::StrCat(address.substr(0, colon), ":", bound_port);
  return absl::OkStatus();
}

absl::Status Listener::BindUnix(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return CannotListen(options_.address,
                        absl::StrCat("want a path of 1 to ",
                                     sizeof(name.sun_path) - 1, " bytes"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  const auto* address = reinterpret_cast<const sockaddr*>(&name);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return CannotListen(options_.address, ErrorText(errno));
  sockets_.push_back(fd);
  // What a server that was killed has left behind is a socket that nobody
  // answers.
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool alive = connect(probe, address, sizeof(name)) == 0;
    const bool stale = !alive && errno == ECONNREFUSED;
    close(probe);
    if (stale) (void)unlink(path.c_str());
  }
  if (bind(fd, address, sizeof(name)) != 0 || listen(fd, kBacklog) != 0) {
    return CannotListen(options_.address, ErrorText(errno));
  }
  unix_path_ = path;
  address_ = options_.address;
  return absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  if (wake_fd_ >= 0) close(wake_fd_);
}

void Listener::Start(
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  MOE_CHECK(!thread_.joinable());
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    MOE_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  for (const int fd : sockets_) close(fd);
  sockets_.clear();
  if (!unix_path_.empty()) (void)unlink(unix_path_.c_str());
  unix_path_.clear();
}

void Listener::Run() {
  std::vector<pollfd> fds;
  for (const int fd : sockets_) {
    fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  }
  fds.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
  while (true) {
    if (poll(fds.data(), fds.size(), /*timeout=*/-1) < 0) continue;  // EINTR
    if (fds.back().revents != 0) return;
    for (const int fd : sockets_) {
      while (AcceptOne(fd)) {
      }
    }
  }
}

bool Listener::AcceptOne(int socket) {
  const int fd =
      accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno == ECONNABORTED || errno == EINTR) return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      // No descriptors or no memory: the connection waits in the backlog.
      options_.pause(wake_fd_);
    }
    return false;
  }
  if (handed_.size() >= static_cast<size_t>(options_.max_connections)) {
    ForgetClosed();
  }
  struct stat info {};
  if (handed_.size() >= static_cast<size_t>(options_.max_connections) ||
      fstat(fd, &info) != 0) {
    close(fd);
    options_.on_refused();
    return true;
  }
  handed_.push_back({.fd = fd, .inode = info.st_ino});
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
      connection;
  connection.listener_fd = socket;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
  return true;
}

void Listener::ForgetClosed() {
  const auto closed = [](const Handed& connection) {
    struct stat info {};
    return fstat(connection.fd, &info) != 0 || !S_ISSOCK(info.st_mode) ||
           info.st_ino != connection.inode;
  };
  handed_.erase(std::remove_if(handed_.begin(), handed_.end(), closed),
                handed_.end());
}

}  // namespace moe
