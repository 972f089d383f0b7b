// Real sockets on loopback, and no gRPC: connections are handed to a list.

#include "server/transport/listener.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

// Connections that have been handed over, in place of gRPC.
class Connections {
 public:
  ~Connections() { CloseAll(); }

  void Add(int fd) {
    absl::MutexLock lock(&mutex_);
    fds_.push_back(fd);
  }
  void WaitFor(size_t count) const {
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return fds_.size() >= count;
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&there));
  }
  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return fds_.size();
  }
  int back() const {
    absl::MutexLock lock(&mutex_);
    return fds_.back();
  }
  // As gRPC does when a connection ends: nobody is told.
  void CloseAll() {
    absl::MutexLock lock(&mutex_);
    for (const int fd : fds_) close(fd);
    fds_.clear();
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<int> fds_ ABSL_GUARDED_BY(mutex_);
};

class FakeAcceptor final
    : public grpc::experimental::ExternalConnectionAcceptor {
 public:
  explicit FakeAcceptor(Connections* connections)
      : connections_(*connections) {}
  void HandleNewConnection(NewConnectionParameters* connection) override {
    connections_.Add(connection->fd);
  }

 private:
  Connections& connections_;
};

// Connects a client's socket to "127.0.0.1:PORT". False if that fails.
bool ConnectSocket(int fd, const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &name.sin_addr);
  return connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
}

// A client's end of a connection; negative if there is none.
int ConnectTo(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_GE(fd, 0);
  if (ConnectSocket(fd, address)) return fd;
  close(fd);
  return -1;
}

// Whether the other side has closed the connection; waits until it has, or has
// sent a byte.
bool IsClosed(int fd) {
  char byte = 0;
  return read(fd, &byte, 1) <= 0;
}

// The highest file descriptor of this process.
int HighestFd() {
  int highest = 0;
  DIR* folder = opendir("/proc/self/fd");
  EXPECT_NE(folder, nullptr);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): a stream of its own.
  while (const dirent* entry = readdir(folder)) {
    int fd = 0;
    if (absl::SimpleAtoi(entry->d_name, &fd)) highest = std::max(highest, fd);
  }
  closedir(folder);
  return highest;
}

class ListenerTest : public ::testing::Test {
 protected:
  ~ListenerTest() override {
    listener_.reset();
    for (const int fd : clients_) close(fd);
  }

  void Bind(ListenerOptions options = {}) {
    if (options.address.empty()) options.address = "127.0.0.1:0";
    options.on_refused = [this] { refused_.Add(-1); };
    MOE_ASSERT_OK_AND_ASSIGN(listener_, Listener::Bind(options));
  }
  void Start() { listener_->Start(std::make_unique<FakeAcceptor>(&accepted_)); }
  int Connect() {
    const int fd = ConnectTo(listener_->address());
    EXPECT_GE(fd, 0);
    clients_.push_back(fd);
    return fd;
  }

  std::unique_ptr<Listener> listener_;
  Connections accepted_;
  Connections refused_;  // counts them
  std::vector<int> clients_;
};

TEST_F(ListenerTest, HandsOverConnectionsThatCarryBytesBothWays) {
  Bind();
  Start();
  const int client = Connect();
  accepted_.WaitFor(1);
  const int server = accepted_.back();
  EXPECT_NE(fcntl(server, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(server, F_GETFD) & FD_CLOEXEC, 0);
  char byte = 'x';
  ASSERT_EQ(write(server, &byte, 1), 1);
  byte = 0;
  ASSERT_EQ(read(client, &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(ListenerTest, ConnectionsWaitForTheStart) {
  Bind();
  Connect();
  Connect();
  EXPECT_EQ(accepted_.size(), 0U);
  Start();
  accepted_.WaitFor(2);
}

TEST_F(ListenerTest, TakesConnectionsOverAUnixSocket) {
  const TempFolder folder;
  const std::string path = folder.File("socket");
  Bind({.address = absl::StrCat("unix:", path)});
  Start();
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  clients_.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(clients_.back(), reinterpret_cast<sockaddr*>(&name),
                    sizeof(name)),
            0);
  accepted_.WaitFor(1);
}

TEST_F(ListenerTest,
       RefusesConnectionsBeyondTheBoundAndTakesThemOnceThereIsRoom) {
  Bind({.address = "", .max_connections = 2});
  Start();
  Connect();
  Connect();
  accepted_.WaitFor(2);
  EXPECT_TRUE(IsClosed(Connect()));
  refused_.WaitFor(1);
  EXPECT_EQ(accepted_.size(), 2U);
  // Nobody tells the listener; it finds out when it needs the place.
  accepted_.CloseAll();
  Connect();
  Connect();
  accepted_.WaitFor(2);
  EXPECT_TRUE(IsClosed(Connect()));
  refused_.WaitFor(2);
}

TEST_F(ListenerTest, AnotherFileUnderTheSameDescriptorIsNoConnection) {
  Bind({.address = "", .max_connections = 1});
  Start();
  Connect();
  accepted_.WaitFor(1);
  const int fd = accepted_.back();
  // gRPC has closed it, and the process has opened something else.
  const int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(other, 0);
  ASSERT_EQ(dup2(other, fd), fd);
  close(other);
  Connect();
  accepted_.WaitFor(2);
  EXPECT_EQ(refused_.size(), 0U);
}

TEST_F(ListenerTest, GoesOnAfterTheProcessHadNoFileDescriptorLeft) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto restore =
      absl::MakeCleanup([&] { setrlimit(RLIMIT_NOFILE, &before); });
  absl::Mutex mutex;
  int pauses = 0;
  bool again = false;
  Bind({.address = "", .pause = [&](int /*stop*/) {
          absl::MutexLock lock(&mutex);
          ++pauses;
          mutex.Await(absl::Condition(&again));
        }});
  Start();
  // One client connects later, by a socket that is there.
  const int client = Connect();
  accepted_.WaitFor(1);
  const int later = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(later, 0);
  clients_.push_back(later);
  const rlimit none = {.rlim_cur = static_cast<rlim_t>(HighestFd()),
                       .rlim_max = before.rlim_max};
  // Lower ones that are free would be taken.
  std::vector<int> filling;
  const auto close_all = absl::MakeCleanup([&] {
    for (const int fd : filling) close(fd);
  });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  while (true) {
    const int fd = dup(client);
    if (fd < 0) break;
    filling.push_back(fd);
  }
  ASSERT_TRUE(ConnectSocket(later, listener_->address()));
  {
    absl::MutexLock lock(&mutex);
    const auto paused = [&] { return pauses > 0; };
    mutex.Await(absl::Condition(&paused));
  }
  EXPECT_EQ(accepted_.size(), 1U);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  {
    absl::MutexLock lock(&mutex);
    again = true;
  }
  // The connection has waited, and others follow.
  accepted_.WaitFor(2);
  Connect();
  accepted_.WaitFor(3);
  EXPECT_EQ(refused_.size(), 0U);
}

TEST_F(ListenerTest, StopEndsThePauseAndRefusesWhoeverComes) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  Bind();
  Start();
  Connect();
  accepted_.WaitFor(1);
  const std::string address = listener_->address();
  listener_->Stop();
  EXPECT_LT(ConnectTo(address), 0);
  // Those that are there go on.
  char byte = 'x';
  EXPECT_EQ(write(accepted_.back(), &byte, 1), 1);
  listener_->Stop();
}

}  // namespace
}  // namespace moe
