#include "server/common/line_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::Duration kLong = absl::Minutes(2);  // reached on failure only

std::string Lost(int64_t lines) { return absl::StrCat(lines, " lost\n"); }

// A pipe of one page.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(in(), F_SETPIPE_SZ, 4096), 4096);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(out());
    close(in());
  }

  int out() const { return ends_[0]; }
  int in() const { return ends_[1]; }

  // The next `count` lines, without their ends; fewer if it is closed.
  std::vector<std::string> ReadLines(size_t count) {
    std::vector<std::string> lines;
    std::string line;
    char next = 0;
    while (lines.size() < count && read(out(), &next, 1) == 1) {
      if (next != '\n') {
        line += next;
      } else {
        lines.push_back(std::move(line));
        line.clear();
      }
    }
    return lines;
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(LineWriterTest, WritesLinesInTheirOrder) {
  Pipe pipe;
  const LineWriter writer({.fd = pipe.in(), .lost = Lost});
  writer.Write("a\n");
  writer.Write("b\n");
  EXPECT_TRUE(writer.Flush(kLong));
  writer.Write("c\n");
  EXPECT_THAT(pipe.ReadLines(3), ElementsAre("a", "b", "c"));
}

TEST(LineWriterTest, FlushOfNothingReturnsAtOnce) {
  Pipe pipe;
  const LineWriter writer({.fd = pipe.in(), .lost = Lost});
  EXPECT_TRUE(writer.Flush(absl::ZeroDuration()));
}

TEST(LineWriterTest, NeverWaitsForAReaderAndSaysHowManyLinesWereLost) {
  Pipe pipe;
  const LineWriter writer({.fd = pipe.in(), .max_bytes = 10'000, .lost = Lost});
  constexpr int kLines = 10'000;
  for (int i = 0; i < kLines; ++i) writer.Write(absl::StrCat("line ", i, "\n"));
  EXPECT_FALSE(writer.Flush(absl::Milliseconds(1)));

  // Each line is there, or counted by a note that is where it would be.
  int kept = 0;
  int lost = 0;
  while (kept + lost < kLines) {
    const std::vector<std::string> next = pipe.ReadLines(1);
    ASSERT_THAT(next, SizeIs(1));
    if (next.front() == absl::StrCat("line ", kept + lost)) {
      ++kept;
      continue;
    }
    int here = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(absl::StripSuffix(next.front(), " lost"), &here))
        << next.front();
    ASSERT_GT(here, 0);
    lost += here;
  }
  EXPECT_EQ(kept + lost, kLines);
  EXPECT_GT(kept, 500);
  EXPECT_GT(lost, 0);
  writer.Write("again\n");
  EXPECT_THAT(pipe.ReadLines(1), ElementsAre("again"));
  EXPECT_TRUE(writer.Flush(kLong));
}

TEST(LineWriterTest, CountsWhatAFullDiskDidNotTake) {
  const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const LineWriter writer({.fd = fd, .lost = Lost});
  writer.Write("a\n");
  writer.Write("b\n");
  EXPECT_TRUE(writer.Flush(kLong));
  Pipe pipe;
  ASSERT_EQ(dup3(pipe.in(), fd, O_CLOEXEC), fd);
  writer.Write("c\n");
  EXPECT_THAT(pipe.ReadLines(2), ElementsAre("2 lost", "c"));
  close(fd);
}

TEST(LineWriterTest, OutlivesTheReaderOfItsPipe) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  const LineWriter writer({.fd = ends[1], .lost = Lost});
  writer.Write("a\n");  // SIGPIPE would end the test
  EXPECT_TRUE(writer.Flush(kLong));
  Pipe pipe;
  ASSERT_EQ(dup3(pipe.in(), ends[1], O_CLOEXEC), ends[1]);
  writer.Write("b\n");
  EXPECT_THAT(pipe.ReadLines(2), ElementsAre("1 lost", "b"));
  close(ends[1]);
}

TEST(LineWriterTest, LosesNothingOnANonBlockingDescriptor) {
  Pipe pipe;
  ASSERT_EQ(fcntl(pipe.in(), F_SETFL, O_NONBLOCK), 0);
  const LineWriter writer({.fd = pipe.in(), .lost = Lost});
  std::vector<std::string> lines;
  for (int i = 0; i < 2000; ++i) {
    lines.push_back(absl::StrCat("line ", i));
    writer.Write(lines.back() + "\n");
  }
  EXPECT_EQ(pipe.ReadLines(lines.size()), lines);
}

TEST(LineWriterTest, KeepsLinesOfManyThreadsWholeAndInOrder) {
  constexpr int kThreads = 4;
  constexpr int kLines = 1000;
  Pipe pipe;
  const LineWriter writer({.fd = pipe.in(), .lost = Lost});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&writer, thread] {
      for (int i = 0; i < kLines; ++i) {
        writer.Write(absl::StrCat(thread, " ", i, "\n"));
      }
    });
  }
  std::vector<int> next(kThreads, 0);
  for (const std::string& line : pipe.ReadLines(kThreads * kLines)) {
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    ASSERT_THAT(parts, SizeIs(2));
    const auto thread = static_cast<size_t>(std::stoi(parts[0]));
    ASSERT_LT(thread, next.size());
    EXPECT_EQ(parts[1], absl::StrCat(next[thread]++));
  }
  EXPECT_EQ(absl::StrJoin(next, " "), "1000 1000 1000 1000");
  for (std::thread& thread : threads) thread.join();
}

TEST(LineWriterTest, ItsEndWaitsForNobodyAndLosesNothing) {
  Pipe pipe;
  std::vector<std::string> lines;
  {
    const LineWriter writer({.fd = pipe.in(), .lost = Lost});
    for (int i = 0; i < 2000; ++i) {
      lines.push_back(absl::StrCat("line ", i));
      writer.Write(lines.back() + "\n");
    }
  }
  EXPECT_EQ(pipe.ReadLines(lines.size()), lines);
}

}  // namespace
}  // namespace moe
