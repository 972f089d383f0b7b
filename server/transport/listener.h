// Accepts connections, over TCP or a unix socket, and hands them to gRPC.
//
// gRPC's own listener ends for good when accept fails because the process has
// no file descriptor left: whoever opens enough connections would turn the
// server deaf. This one counts connections, refuses those beyond a bound, and
// goes on after any error.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/server_builder.h"

namespace moe {

// Ten milliseconds, or until `stop` can be read.
void PauseAccepting(int stop);

struct ListenerOptions {
  // "HOST:PORT", port 0 picks a free one; or "unix:PATH".
  std::string address;
  int max_connections = 10'000;
  // Called for each connection that is refused, from the listener's thread.
  std::function<void()> on_refused = [] {};
  // What the listener's thread does, before it tries again, when a connection
  // could not be taken for want of a file descriptor or of memory.
  // stop: a file descriptor that can be read once the listener stops.
  std::function<void(int stop)> pause = PauseAccepting;
};

// Thread-safety: thread-compatible.
class Listener {
 public:
  // Listens. Connections wait until Start.
  // Errors: UNAVAILABLE naming the flag and the reason.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(
      const ListenerOptions& options);
  // As Stop.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // As bound: "HOST:PORT" or "unix:PATH".
  const std::string& address() const { return address_; }

  // Begins to hand connections over. Requires: not started.
  void Start(
      std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // Refuses connections from now on; those there are go on.
  void Stop();

 private:
  // A connection that gRPC owns. It closes it without telling; then the
  // descriptor is free, or another file.
  struct Handed {
    int fd;
    ino_t inode;
  };

  explicit Listener(const ListenerOptions& options) : options_(options) {}
  absl::Status BindTcp();
  absl::Status BindUnix(const std::string& path);
  void Run();
  // Takes one connection. False if there was none.
  bool AcceptOne(int socket);
  void ForgetClosed();

  const ListenerOptions options_;
  std::string address_;
  std::vector<int> sockets_;
  std::string unix_path_;  // to be removed
  int wake_fd_ = -1;       // readable = stop
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::vector<Handed> handed_;
  std::thread thread_;
};

}  // namespace moe
