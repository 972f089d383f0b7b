// What gRPC and the machine take for a call that does nothing: health checks
// of a server, one after the other, with a pause between them. Prints their
// median in microseconds.
//
//   build/release/bin/empty_call_bench ADDRESS PAUSE_SECONDS SECONDS
//
// The pause matters: a CPU that has halted is late, and its caches are cold.

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"

namespace {

// The time of one call as an asynchronous caller sees it; zero if it fails.
absl::Duration Call(grpc::GenericStub& stub) {
  const grpc::Slice nothing("");
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  grpc::Status status;
  absl::Notification done;
  const absl::Time start = absl::Now();
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request,
                 &response, [&](grpc::Status s) {
                   status = std::move(s);
                   done.Notify();
                 });
  done.WaitForNotification();
  return status.ok() ? absl::Now() - start : absl::ZeroDuration();
}

}  // namespace

int main(int argc, char** argv) {
  double pause = 0;
  double seconds = 0;
  if (argc != 4 || !absl::SimpleAtod(argv[2], &pause) ||
      !absl::SimpleAtod(argv[3], &seconds) || pause < 0) {
    std::fputs("usage: empty_call_bench ADDRESS PAUSE_SECONDS SECONDS\n",
               stderr);
    return 2;
  }
  grpc::GenericStub stub(
      grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  std::vector<absl::Duration> calls;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  do {
    calls.push_back(Call(stub));
    if (calls.back() == absl::ZeroDuration()) {
      std::fputs("empty_call_bench: the call failed\n", stderr);
      return 1;
    }
    absl::SleepFor(absl::Seconds(pause));
  } while (absl::Now() < end);
  const auto middle = calls.begin() + static_cast<int64_t>(calls.size() / 2);
  std::nth_element(calls.begin(), middle, calls.end());
  std::printf("%.1f\n", absl::ToDoubleMicroseconds(*middle));
  return 0;
}
