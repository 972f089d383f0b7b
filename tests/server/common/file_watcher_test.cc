#include "server/common/file_watcher.h"

#include <string>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

class FileWatcherTest : public ::testing::Test {
 protected:
  // Counts the changes of a file.
  void Count(const std::string& name, int* changes) {
    watcher_.Watch(WatchedFiles({folder_.File(name)}),
                   [changes] { ++*changes; });
  }

  const TempFolder folder_;
  FileWatcher watcher_;
};

TEST_F(FileWatcherTest, TellsThoseWhoseFilesHaveChanged) {
  folder_.Write("a", "1");
  folder_.Write("b", "1");
  int a = 0;
  int b = 0;
  Count("a", &a);
  Count("b", &b);
  watcher_.Look();
  EXPECT_EQ(a, 0);
  folder_.Write("a", "22");
  watcher_.Look();
  watcher_.Look();
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 0);
  folder_.Write("b", "22");
  folder_.Write("a", "333");
  watcher_.Look();
  EXPECT_EQ(a, 2);
  EXPECT_EQ(b, 1);
}

TEST_F(FileWatcherTest, MissesNoChangeBetweenReadingAndWatching) {
  folder_.Write("a", "1");
  WatchedFiles files({folder_.File("a")});
  folder_.Write("a", "22");
  int changes = 0;
  watcher_.Watch(files, [&changes] { ++changes; });
  watcher_.Look();
  EXPECT_EQ(changes, 1);
}

TEST_F(FileWatcherTest, LooksByItself) {
  absl::Notification changed;
  watcher_.Watch(WatchedFiles({folder_.File("a")}),
                 [&changed] { changed.Notify(); });
  watcher_.Start();
  folder_.Write("a", "1");
  changed.WaitForNotification();
}

TEST_F(FileWatcherTest, CallsNobodyOnceStopped) {
  int changes = 0;
  Count("a", &changes);
  watcher_.Start();
  watcher_.Stop();
  folder_.Write("a", "1");
  EXPECT_EQ(changes, 0);
  watcher_.Stop();
}

}  // namespace
}  // namespace moe
