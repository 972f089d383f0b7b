// One shard as its front sees it: channels to its replicas, and calls to them.
//
// Names, connections, balancing over the addresses of a target and health are
// gRPC's. What is ours is the choice between targets, and that whoever calls
// may try again elsewhere, or twice at once: gRPC's own retries can't tell one
// target from another, and do not hedge.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/shards/shards.grpc.pb.h"
#include "server/common/steady_time.h"
#include "server/metrics/metrics.h"
#include "server/transport/caller.h"

namespace moe {

struct ShardClientOptions {
  Caller caller;
  // How long a connection may be silent while calls wait, before it is asked
  // for a sign of life, and then until it is given up.
  absl::Duration keepalive = absl::Seconds(1);
  // How long a replica may take to describe itself.
  absl::Duration describe_timeout = absl::Seconds(1);
  // The largest response that is taken.
  int64_t max_message_bytes = int64_t{256} << 20;
};

// One call to a replica, from its start until its end is known.
struct ShardAttempt {
  // What whoever started it knows it by.
  size_t call = 0;

  size_t target = 0;  // that it went to
  int64_t rows = 0;
  SteadyTime start;
  SteadyTime end;
  grpc::ClientContext context;
  grpc::ByteBuffer response;
  absl::Status status;
};

// Where attempts that have ended wait for the thread that started them.
// Thread-safe.
class AttemptInbox {
 public:
  void Post(std::shared_ptr<ShardAttempt> attempt);
  // Waits until there are some, or until a moment. Takes them all.
  std::vector<std::shared_ptr<ShardAttempt>> Take(SteadyTime until);

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<ShardAttempt>> ended_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class ShardClient {
 public:
  ShardClient(const std::string& name, const std::vector<std::string>& targets,
              const ShardClientOptions& options, const ShardMetrics& metrics);

  const std::string& name() const { return name_; }
  const std::vector<std::string>& targets() const { return targets_; }
  const ShardMetrics& metrics() const { return metrics_; }

  // Calls ForwardExperts. `attempt` has call, and is posted to
  // `inbox` once it has ended.
  // avoid: targets that were tried before, by index; others go first.
  void Start(const std::shared_ptr<ShardAttempt>& attempt,
             const grpc::ByteBuffer& request, int64_t rows, SteadyTime deadline,
             const std::vector<size_t>& avoid,
             const std::shared_ptr<AttemptInbox>& inbox);

  // What one replica of each target says of itself; blocks, describe_timeout at
  // most for each. By one thread at a time.
  // Errors: [targets] UNAVAILABLE where none answers.
  std::vector<absl::StatusOr<shards::ShardDescription>> Describe();
  // Ends Describe at once, and any later one: CANCELLED.
  void StopDescribing();
  // Whether a connection to some replica is open.
  bool Connected() const;

  // Whether it has been found to hold what it should; set by its watcher.
  void SetUp(bool up);
  bool up() const { return up_.load(std::memory_order_relaxed); }

  // How long a call of so many rows may take before it is unusual: the
  // percentile of the last ones of about that size. Infinite if they are few.
  absl::Duration UsualTime(int64_t rows, double percentile) const;
  // A call has been answered; or has failed.
  void Answered(const ShardAttempt& attempt);
  void Failed(const absl::Status& status);

 private:
  struct Target {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<grpc::GenericStub> stub;
    std::unique_ptr<shards::ExpertShardService::Stub> describe;
    std::atomic<int64_t> outstanding_rows{0};
  };
  // Seconds of the last calls of about one size.
  struct Times {
    static constexpr size_t kLast = 64;
    std::vector<double> seconds;
    size_t next = 0;
  };

  size_t ChooseTarget(const std::vector<size_t>& avoid);
  static size_t SizeClass(int64_t rows);

  const std::string name_;
  const std::vector<std::string> targets_;
  const Caller caller_;
  const absl::Duration describe_timeout_;
  const ShardMetrics metrics_;
  std::vector<std::shared_ptr<Target>> connections_;  // as targets_
  std::atomic<size_t> turn_{0};
  std::atomic<bool> up_{false};

  mutable absl::Mutex mutex_;
  std::vector<Times> times_ ABSL_GUARDED_BY(mutex_);  // by SizeClass
  bool describing_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* describing_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace moe
