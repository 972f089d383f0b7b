#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

// A socket as systemd has one.
class Socket {
 public:
  // name: a path, or '@' and an abstract name.
  explicit Socket(const std::string& name)
      : fd_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path);
    if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                          name.size())),
              0);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(fd_); }

  // What has come, or "nothing".
  std::string Receive() const {
    char buffer[256];
    const ssize_t size = recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
    return size < 0 ? "nothing"
                    : std::string(buffer, static_cast<size_t>(size));
  }

 private:
  const int fd_;
};

TEST(ServiceManagerTest, TellsASocketInTheFileSystem) {
  const TempFolder folder;
  const Socket socket(folder.File("notify"));
  const ServiceManager manager(folder.File("notify"));
  EXPECT_EQ(socket.Receive(), "nothing");
  manager.Tell("READY=1");
  manager.Tell("STOPPING=1");
  EXPECT_EQ(socket.Receive(), "READY=1");
  EXPECT_EQ(socket.Receive(), "STOPPING=1");
}

TEST(ServiceManagerTest, TellsAnAbstractSocket) {
  const std::string name = absl::StrCat("@moe-test-", getpid());
  const Socket socket(name);
  ServiceManager(name).Tell("READY=1");
  EXPECT_EQ(socket.Receive(), "READY=1");
}

TEST(ServiceManagerTest, TellsNobodyWhereThereIsNobody) {
  ServiceManager("").Tell("READY=1");
  ServiceManager("/no/such/socket").Tell("READY=1");
  ServiceManager(std::string(200, 'x')).Tell("READY=1");
}

TEST(ServiceManagerTest, IsFoundByTheEnvironment) {
  const TempFolder folder;
  const Socket socket(folder.File("notify"));
  setenv("NOTIFY_SOCKET", folder.File("notify").c_str(), 1);
  ServiceManager::FromEnvironment().Tell("READY=1");
  unsetenv("NOTIFY_SOCKET");
  EXPECT_EQ(socket.Receive(), "READY=1");
  ServiceManager::FromEnvironment().Tell("READY=1");
  EXPECT_EQ(socket.Receive(), "nothing");
}

}  // namespace
}  // namespace moe
