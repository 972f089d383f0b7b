#include "server/common/file_watcher.h"

#include <utility>

namespace moe {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);

}  // namespace

FileWatcher::~FileWatcher() { Stop(); }

void FileWatcher::Watch(WatchedFiles files, std::function<void()> on_change) {
  absl::MutexLock lock(&look_mutex_);
  watched_.push_back(
      {.files = std::move(files), .on_change = std::move(on_change)});
}

void FileWatcher::Start() {
  thread_ = std::thread([this] {
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kInterval)) {
          return;
        }
      }
      Look();
    }
  });
}

void FileWatcher::Look() {
  absl::MutexLock lock(&look_mutex_);
  for (Watched& watched : watched_) {
    if (watched.files.Changed()) watched.on_change();
  }
}

void FileWatcher::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace moe
