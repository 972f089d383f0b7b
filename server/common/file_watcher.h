// Looks after the files that a server reads again when they change, as
// certificates and tokens do when they are renewed: one thread for all of them,
// so that no request looks at a disk.

#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/common/watched_files.h"

namespace moe {

// Thread-safe, but for Start and Stop, which are called by one thread.
class FileWatcher {
 public:
  FileWatcher() = default;
  // As Stop.
  ~FileWatcher();
  FileWatcher(const FileWatcher&) = delete;
  FileWatcher& operator=(const FileWatcher&) = delete;

  // Calls `on_change` when any of these files has changed, from one thread at a
  // time; it must not call the watcher. What it uses has to live until the
  // watcher has stopped.
  // files: made before they were read, so that no change is missed.
  void Watch(WatchedFiles files, std::function<void()> on_change);

  // Looks ten times a second from now on. Once.
  void Start();
  // Looks now. Returns when what has changed has been taken care of.
  void Look();
  // Waits for what is being looked at; then nothing is called any more.
  void Stop();

 private:
  struct Watched {
    WatchedFiles files;
    std::function<void()> on_change;
  };

  // Held while it looks, and while files are read.
  absl::Mutex look_mutex_;
  std::vector<Watched> watched_ ABSL_GUARDED_BY(look_mutex_);

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace moe
