#include "server/common/line_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace moe {
namespace {

// Writes all of `text`, as long as that takes. Returns whether it could.
bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size >= 0) {
      text.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {
      // Whoever shares the descriptor has made it non-blocking.
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      (void)poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Starts a thread that no signal of the process chooses: the program's own
// threads have handlers or wait for some. What the thread does wrong itself
// still reaches it, but for SIGPIPE, which write reports as well.
// Returns whether there may be a thread more.
template <typename Function>
bool StartThread(Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP}) {
    sigdelset(&all, fault);
  }
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(std::move(function)).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

class LineWriter::Queue {
 public:
  explicit Queue(const LineWriterOptions& options) : options_(options) {}

  void Write(std::string line) {
    absl::MutexLock lock(&mutex_);
    if (!threaded_) {
      WriteOrCount(line);
      return;
    }
    // Once a line is lost, so are those after it, until the thread has seen
    // where: order stays.
    if (dropped_ > 0 || bytes_ + line.size() > options_.max_bytes) {
      ++dropped_;
      return;
    }
    bytes_ += line.size();
    lines_.push_back(std::move(line));
  }

  bool Flush(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const int64_t mark = begun_ + (HasWork() ? 1 : 0);
    const auto done = [this, mark] {
      mutex_.AssertHeld();
      return ended_ >= mark;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&done), timeout);
  }

  // Nobody adds lines any more.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  void WriteHere() {
    absl::MutexLock lock(&mutex_);
    threaded_ = false;
  }

  // Writes until the queue is closed and empty.
  void Run() {
    while (true) {
      std::vector<std::string> lines;
      int64_t dropped = 0;
      {
        const auto awake = [this] {
          mutex_.AssertHeld();
          return closed_ || HasWork();
        };
        absl::MutexLock lock(&mutex_, absl::Condition(&awake));
        if (!HasWork()) return;
        lines.swap(lines_);
        std::swap(dropped, dropped_);
        bytes_ = 0;
        ++begun_;
      }
      for (const std::string& line : lines) WriteOrCount(line);
      if (dropped > 0) {
        lost_ += dropped;
        if (WriteAll(options_.fd, options_.lost(lost_))) lost_ = 0;
      }
      absl::MutexLock lock(&mutex_);
      ++ended_;
    }
  }

 private:
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !lines_.empty() || dropped_ > 0;
  }

  void WriteOrCount(const std::string& line) {
    const bool written =
        WriteAll(options_.fd, lost_ > 0 ? options_.lost(lost_) + line : line);
    lost_ = written ? 0 : lost_ + 1;
  }

  const LineWriterOptions options_;
  // Lines of which the descriptor has taken no word yet. Only the thread that
  // writes touches it: the one of Run, or with `threaded_` false the callers,
  // under the lock.
  int64_t lost_ = 0;

  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // of lines_
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;  // after lines_
  // How often the thread has taken lines_, and has dealt with what it took.
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool threaded_ ABSL_GUARDED_BY(mutex_) = true;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

LineWriter::LineWriter(const LineWriterOptions& options)
    : queue_(std::make_shared<Queue>(options)) {
  if (!StartThread([queue = queue_] { queue->Run(); })) queue_->WriteHere();
}

LineWriter::~LineWriter() { queue_->Close(); }

void LineWriter::Write(std::string line) const {
  queue_->Write(std::move(line));
}

bool LineWriter::Flush(absl::Duration timeout) const {
  return queue_->Flush(timeout);
}

}  // namespace moe
