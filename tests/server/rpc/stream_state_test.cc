#include "server/rpc/stream_state.h"

#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::HasSubstr;

constexpr StreamLimits kLimits = {
    .max_requests = 3, .max_tokens = 100, .max_bytes = 1000};

// A stream whose reads, engine and writes are the test's.
class StreamStateTest : public ::testing::Test {
 protected:
  // What is to be started, as "read", "write", "finish CODE".
  std::string Steps() {
    const StreamState::Steps steps = state_.TakeSteps();
    std::string text;
    if (steps.read) text += "read ";
    if (steps.write) text += "write ";
    if (steps.finish.has_value()) {
      text += "finish " + absl::StatusCodeToString(steps.finish->code()) + " ";
    }
    if (!text.empty()) text.pop_back();
    return text;
  }
  // The read that runs brings a message; it goes to the engine.
  StreamState::Number Receive(int64_t tokens = 1, int64_t bytes = 1) {
    const auto number = state_.Received();
    EXPECT_TRUE(number.has_value());
    state_.Admit(*number, tokens, bytes);
    state_.ReadDone(/*message=*/true);
    return *number;
  }

  StreamState state_{kLimits};
};

TEST_F(StreamStateTest, ReadsOneMessageAtATime) {
  EXPECT_EQ(Steps(), "read");
  EXPECT_EQ(Steps(), "") << "the read runs";
  EXPECT_EQ(Receive(), 0U);
  EXPECT_EQ(Steps(), "read");
  EXPECT_EQ(Receive(), 1U);
}

TEST_F(StreamStateTest, ResponsesAreWrittenInTheOrderOfRequests) {
  std::vector<StreamState::Number> requests;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Steps(), "read");
    requests.push_back(Receive(1, 10 + i));
  }
  EXPECT_EQ(Steps(), "read");
  state_.Responded(requests[1]);
  EXPECT_EQ(Steps(), "") << "the first one is not answered";
  state_.Responded(requests[0]);
  EXPECT_EQ(Steps(), "write");
  EXPECT_EQ(Steps(), "") << "one write at a time";
  EXPECT_EQ(state_.WriteDone(true), 10);
  EXPECT_EQ(Steps(), "write");
  EXPECT_EQ(state_.WriteDone(true), 11);
  EXPECT_EQ(Steps(), "");
}

TEST_F(StreamStateTest, ReadsNoFurtherThanItsLimits) {
  struct Case {
    const char* limit;
    int64_t tokens;
    int64_t bytes;
    int requests;  // until nothing more is read
  };
  for (const Case& c :
       {Case{"requests", 1, 1, 3}, Case{"tokens", 50, 1, 2},
        Case{"bytes", 1, 500, 2}, Case{"tokens of one", 100, 1, 1},
        Case{"bytes of one", 1, 1001, 1}}) {
    SCOPED_TRACE(c.limit);
    state_ = StreamState(kLimits);
    for (int i = 0; i < c.requests; ++i) {
      EXPECT_EQ(Steps(), "read");
      Receive(c.tokens, c.bytes);
    }
    EXPECT_EQ(Steps(), "");
    state_.Responded(0);
    EXPECT_EQ(Steps(), "write") << "not read before it is sent";
    state_.WriteDone(true);
    EXPECT_EQ(Steps(), "read");
  }
}

TEST_F(StreamStateTest, RequestThatIsRefusedCountsNoTokensOrBytes) {
  EXPECT_EQ(Steps(), "read");
  const auto number = *state_.Received();
  state_.Admit(number, 100, 1000);
  state_.Withdraw(number);
  state_.Responded(number);
  state_.ReadDone(true);
  EXPECT_EQ(Steps(), "read write");
  EXPECT_EQ(state_.WriteDone(true), 0) << "nothing to release";
}

TEST_F(StreamStateTest, EndsOnceTheCallerIsDoneAndAllIsSent) {
  EXPECT_EQ(Steps(), "read");
  const auto number = Receive();
  EXPECT_EQ(Steps(), "read");
  state_.ReadDone(/*message=*/false);
  EXPECT_EQ(Steps(), "");
  state_.Responded(number);
  EXPECT_EQ(Steps(), "write");
  state_.WriteDone(true);
  EXPECT_EQ(Steps(), "finish OK");
  EXPECT_EQ(Steps(), "") << "once";
}

TEST_F(StreamStateTest, StreamWithoutMessagesEndsAtOnce) {
  EXPECT_EQ(Steps(), "read");
  state_.ReadDone(false);
  EXPECT_EQ(Steps(), "finish OK");
}

TEST_F(StreamStateTest, DrainSendsWhatCameAndReadsNoMore) {
  EXPECT_EQ(Steps(), "read");
  const auto number = Receive();
  state_.Drain();
  EXPECT_EQ(Steps(), "");
  state_.Responded(number);
  EXPECT_EQ(Steps(), "write");
  state_.WriteDone(true);
  const StreamState::Steps end = state_.TakeSteps();
  ASSERT_TRUE(end.finish.has_value());
  EXPECT_THAT(*end.finish, StatusIs(absl::StatusCode::kUnavailable,
                                    HasSubstr("draining; retry elsewhere")));
}

TEST_F(StreamStateTest, DrainOfAStreamWhoseCallerIsDoneEndsWell) {
  EXPECT_EQ(Steps(), "read");
  state_.ReadDone(false);
  state_.Drain();
  EXPECT_EQ(Steps(), "finish OK");
}

TEST_F(StreamStateTest, MessageThatComesAfterTheEndIsNoRequest) {
  EXPECT_EQ(Steps(), "read");
  state_.Drain();
  EXPECT_EQ(Steps(), "finish UNAVAILABLE") << "while the read runs";
  EXPECT_EQ(state_.Received(), std::nullopt);
}

TEST_F(StreamStateTest, MessageThatComesAfterDrainIsAnsweredStill) {
  EXPECT_EQ(Steps(), "read");
  const auto first = Receive();
  EXPECT_EQ(Steps(), "read");
  state_.Drain();
  const auto second = Receive();
  state_.Responded(first);
  state_.Responded(second);
  EXPECT_EQ(Steps(), "write");
  state_.WriteDone(true);
  EXPECT_EQ(Steps(), "write");
  state_.WriteDone(true);
  EXPECT_EQ(Steps(), "finish UNAVAILABLE");
}

TEST_F(StreamStateTest, FailedWriteEndsReadsAndReleasesWhatIsLeft) {
  EXPECT_EQ(Steps(), "read");
  const auto first = Receive(1, 10);
  EXPECT_EQ(Steps(), "read");
  const auto second = Receive(1, 20);
  state_.Responded(first);
  EXPECT_EQ(Steps(), "read write");
  EXPECT_EQ(state_.WriteDone(/*ok=*/false), 10);
  state_.ReadDone(false);
  EXPECT_EQ(Steps(), "") << "the engine has the second one";
  state_.Responded(second);
  EXPECT_EQ(Steps(), "write");
  EXPECT_EQ(state_.WriteDone(false), 20);
  EXPECT_EQ(Steps(), "finish OK");
}

TEST_F(StreamStateTest, RefusedStreamStartsNothing) {
  state_.End();
  EXPECT_EQ(Steps(), "");
  state_.Drain();
  EXPECT_EQ(Steps(), "");
}

// Whatever comes in whatever order, every request is written once and in order,
// limits hold, all bytes are given back, and the stream ends.
TEST_F(StreamStateTest, EveryRequestIsWrittenOnceInOrder) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    state_ = StreamState(kLimits);
    const int64_t messages = draw(0, 20);
    const int64_t drain_at = draw(0, 200);  // may be never
    int64_t received = 0;
    int64_t admitted_bytes = 0;
    bool reading = false;
    bool writing = false;
    std::set<StreamState::Number> running;
    std::set<StreamState::Number> responded;
    StreamState::Number written = 0;
    bool ended = false;
    for (int step = 0; step < 1000 && !ended; ++step) {
      if (step == drain_at) state_.Drain();
      const StreamState::Steps steps = state_.TakeSteps();
      ended = steps.finish.has_value();
      if (steps.read) {
        EXPECT_FALSE(reading);
        EXPECT_LT(running.size() + responded.size(), kLimits.max_requests);
        reading = true;
      }
      if (steps.write) {
        EXPECT_FALSE(writing);
        EXPECT_EQ(responded.count(written), 1U);
        writing = true;
      }
      const int64_t what = draw(0, 2);
      if (what == 0 && reading) {
        const bool message = received < messages;
        if (message) {
          const auto number = state_.Received();
          ASSERT_EQ(number.has_value(), !ended);
          if (!number.has_value()) break;
          EXPECT_EQ(*number, static_cast<StreamState::Number>(received));
          const int64_t bytes = draw(0, 600);
          state_.Admit(*number, draw(0, 60), bytes);
          admitted_bytes += bytes;
          running.insert(*number);
          ++received;
        }
        state_.ReadDone(message);
        reading = false;
      } else if (what == 1 && !running.empty()) {
        auto one = running.begin();
        std::advance(one, draw(0, static_cast<int64_t>(running.size()) - 1));
        state_.Responded(*one);
        responded.insert(*one);
        running.erase(one);
      } else if (what == 2 && writing) {
        admitted_bytes -= state_.WriteDone(draw(0, 30) > 0);
        responded.erase(written++);
        writing = false;
      }
    }
    EXPECT_TRUE(ended);
    EXPECT_EQ(written, static_cast<StreamState::Number>(received));
    EXPECT_EQ(admitted_bytes, 0);
  }
}

}  // namespace
}  // namespace moe
