// Tells systemd how far the server is: the protocol of sd_notify(3), a datagram
// to the socket that the service manager names. Its library would be a
// dependency of everyone for these lines.

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace moe {

class ServiceManager {
 public:
  // The one that started this process, by its environment; maybe none. Call it
  // before threads run.
  static ServiceManager FromEnvironment();
  // socket: path, or '@' and a name of the abstract kind; empty: none.
  explicit ServiceManager(absl::string_view socket) : socket_(socket) {}

  // Sends lines such as "READY=1"; without a service manager, nothing. Never
  // fails: nobody could do anything about it. Thread-safe.
  void Tell(absl::string_view state) const;

 private:
  std::string socket_;
};

}  // namespace moe
