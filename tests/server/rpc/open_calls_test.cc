#include "server/rpc/open_calls.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

class FakeStream final : public OpenStream {
 public:
  void Drain() override { ++drained_; }
  int drained() const { return drained_; }

 private:
  int drained_ = 0;
};

TEST(OpenCallsTest, IsIdleOnceNoCallIsCounted) {
  OpenCalls calls;
  EXPECT_TRUE(calls.WaitUntilIdle(absl::ZeroDuration()));
  std::optional<OpenCalls::Count> a(&calls);
  std::optional<OpenCalls::Count> b(&calls);
  EXPECT_FALSE(calls.WaitUntilIdle(absl::ZeroDuration()));
  a.reset();
  EXPECT_FALSE(calls.WaitUntilIdle(absl::ZeroDuration()));
  b.reset();
  EXPECT_TRUE(calls.WaitUntilIdle(absl::ZeroDuration()));
}

TEST(OpenCallsTest, KeepsStreamsUntilTheyAreRemoved) {
  OpenCalls calls;
  auto stream = std::make_shared<FakeStream>();
  const std::weak_ptr<FakeStream> weak = stream;
  OpenStream* const key = stream.get();
  EXPECT_FALSE(calls.AddStream(std::move(stream)));
  EXPECT_FALSE(weak.expired());
  calls.RemoveStream(key);
  EXPECT_TRUE(weak.expired());
}

TEST(OpenCallsTest, DrainReachesTheStreamsThatThereAre) {
  OpenCalls calls;
  const auto gone = std::make_shared<FakeStream>();
  const auto there = std::make_shared<FakeStream>();
  calls.AddStream(gone);
  calls.AddStream(there);
  calls.RemoveStream(gone.get());
  calls.BeginDrain();
  EXPECT_EQ(gone->drained(), 0);
  EXPECT_EQ(there->drained(), 1);
}

TEST(OpenCallsTest, StreamThatComesLaterIsToldToDrain) {
  OpenCalls calls;
  calls.BeginDrain();
  EXPECT_TRUE(calls.AddStream(std::make_shared<FakeStream>()));
}

}  // namespace
}  // namespace moe
