#include "server/shards/shard_client.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "server/wire/grpc_status.h"

namespace moe {
namespace {

constexpr char kForwardExperts[] =
    "/moe.shards.ExpertShardService/ForwardExperts";

// Turns over the addresses that a target stands for, and leaves out those whose
// health does not say SERVING. Asked for a service that servers of every
// release have: one that is no shard, or speaks as another release does, is to
// be asked what it holds and refused for it, not taken for one that is away.
constexpr char kServiceConfig[] = R"({
  "loadBalancingConfig": [{"round_robin": {}}],
  "healthCheckConfig": {"serviceName": "moe.v1.MoeService"}
})";

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ShardClientOptions& options) {
  grpc::ChannelArguments arguments;
  options.caller.Prepare(arguments);
  arguments.SetServiceConfigJSON(kServiceConfig);
  arguments.SetMaxReceiveMessageSize(
      static_cast<int>(options.max_message_bytes));
  arguments.SetMaxSendMessageSize(-1);
  // Retries are the caller's: see above.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A replica that restarts is found again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  const auto keepalive =
      static_cast<int>(absl::ToInt64Milliseconds(options.keepalive));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Names that change with the pods behind them are asked for again.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  return grpc::CreateCustomChannel(target, options.caller.credentials(),
                                   arguments);
}

// How promising a channel looks: the lower the better.
int Rank(grpc_connectivity_state state) {
  switch (state) {
    case GRPC_CHANNEL_READY:
      return 0;
    case GRPC_CHANNEL_IDLE:
    case GRPC_CHANNEL_CONNECTING:
      return 1;
    default:
      return 2;
  }
}

std::chrono::system_clock::time_point ToSystem(SteadyTime time) {
  if (time == SteadyTime::max()) {
    return std::chrono::system_clock::time_point::max();
  }
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(
             time - std::chrono::steady_clock::now());
}

}  // namespace

void AttemptInbox::Post(std::shared_ptr<ShardAttempt> attempt) {
  absl::MutexLock lock(&mutex_);
  ended_.push_back(std::move(attempt));
}

std::vector<std::shared_ptr<ShardAttempt>> AttemptInbox::Take(
    SteadyTime until) {
  const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !ended_.empty();
  };
  const absl::Duration wait =
      until == SteadyTime::max()
          ? absl::InfiniteDuration()
          : absl::FromChrono(until - std::chrono::steady_clock::now());
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&some), wait);
  return std::exchange(ended_, {});
}

ShardClient::ShardClient(const std::string& name,
                         const std::vector<std::string>& targets,
                         const ShardClientOptions& options,
                         const ShardMetrics& metrics)
    : name_(name),
      targets_(targets),
      caller_(options.caller),
      describe_timeout_(options.describe_timeout),
      metrics_(metrics) {
  for (const std::string& target : targets) {
    auto connection = std::make_shared<Target>();
    connection->channel = MakeChannel(target, options);
    connection->stub = std::make_unique<grpc::GenericStub>(connection->channel);
    connection->describe =
        shards::ExpertShardService::NewStub(connection->channel);
    connection->channel->GetState(/*try_to_connect=*/true);
    connections_.push_back(std::move(connection));
  }
}

size_t ShardClient::ChooseTarget(const std::vector<size_t>& avoid) {
  // Those that were not tried, then those with a connection, then the one with
  // the least to do; in turn if that is the same.
  const size_t count = connections_.size();
  const size_t first = turn_.fetch_add(1, std::memory_order_relaxed);
  const auto key = [&](size_t target) {
    const Target& connection = *connections_[target];
    return std::tuple(
        std::count(avoid.begin(), avoid.end(), target),
        Rank(connection.channel->GetState(/*try_to_connect=*/true)),
        connection.outstanding_rows.load(std::memory_order_relaxed));
  };
  size_t best = first % count;
  for (size_t i = 1; i < count; ++i) {
    const size_t target = (first + i) % count;
    if (key(target) < key(best)) best = target;
  }
  return best;
}

void ShardClient::Start(const std::shared_ptr<ShardAttempt>& attempt,
                        const grpc::ByteBuffer& request, int64_t rows,
                        SteadyTime deadline, const std::vector<size_t>& avoid,
                        const std::shared_ptr<AttemptInbox>& inbox) {
  attempt->target = ChooseTarget(avoid);
  attempt->rows = rows;
  attempt->start = std::chrono::steady_clock::now();
  attempt->context.set_deadline(ToSystem(deadline));
  caller_.Prepare(attempt->context);
  const std::shared_ptr<Target>& target = connections_[attempt->target];
  target->outstanding_rows.fetch_add(rows, std::memory_order_relaxed);
  metrics_.in_flight_rows->Increment(static_cast<double>(rows));
  metrics_.sent_bytes->Increment(static_cast<double>(request.Length()));
  // The call keeps what it needs: it may outlive this object.
  target->stub->UnaryCall(
      &attempt->context, kForwardExperts, grpc::StubOptions(), &request,
      &attempt->response,
      [attempt, inbox, metrics = metrics_, rows,
       target](const grpc::Status& status) {
        attempt->end = std::chrono::steady_clock::now();
        attempt->status = FromGrpcStatus(status);
        target->outstanding_rows.fetch_sub(rows, std::memory_order_relaxed);
        metrics.in_flight_rows->Decrement(static_cast<double>(rows));
        if (status.ok()) {
          metrics.received_bytes->Increment(
              static_cast<double>(attempt->response.Length()));
        }
        inbox->Post(attempt);
      });
}

std::vector<absl::StatusOr<shards::ShardDescription>> ShardClient::Describe() {
  std::vector<absl::StatusOr<shards::ShardDescription>> descriptions;
  for (const auto& target : connections_) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + describe_timeout_));
    caller_.Prepare(context);
    {
      absl::MutexLock lock(&mutex_);
      describing_ = &context;
      // A call that is cancelled before it has begun ends when it does.
      if (describing_stopped_) context.TryCancel();
    }
    shards::ShardDescription description;
    const absl::Status status = FromGrpcStatus(target->describe->DescribeShard(
        &context, shards::DescribeShardRequest(), &description));
    {
      absl::MutexLock lock(&mutex_);
      describing_ = nullptr;
    }
    if (status.ok()) {
      descriptions.emplace_back(std::move(description));
    } else {
      descriptions.emplace_back(status);
    }
  }
  return descriptions;
}

void ShardClient::StopDescribing() {
  absl::MutexLock lock(&mutex_);
  describing_stopped_ = true;
  if (describing_ != nullptr) describing_->TryCancel();
}

bool ShardClient::Connected() const {
  return std::any_of(
      connections_.begin(), connections_.end(), [](const auto& target) {
        return target->channel->GetState(
                   /*try_to_connect=*/true) == GRPC_CHANNEL_READY;
      });
}

void ShardClient::SetUp(bool up) {
  up_.store(up, std::memory_order_relaxed);
  metrics_.up->Set(up ? 1 : 0);
}

size_t ShardClient::SizeClass(int64_t rows) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(rows)));
}

absl::Duration ShardClient::UsualTime(int64_t rows, double percentile) const {
  constexpr size_t kFew = 16;
  std::vector<double> seconds;
  {
    absl::MutexLock lock(&mutex_);
    if (SizeClass(rows) < times_.size()) {
      seconds = times_[SizeClass(rows)].seconds;
    }
  }
  if (seconds.size() < kFew) return absl::InfiniteDuration();
  const auto rank = static_cast<size_t>(
      percentile / 100 * static_cast<double>(seconds.size() - 1));
  std::nth_element(seconds.begin(),
                   seconds.begin() + static_cast<std::ptrdiff_t>(rank),
                   seconds.end());
  return absl::Seconds(seconds[rank]);
}

void ShardClient::Failed(const absl::Status& status) {
  // The code of a replica's answer may be any number.
  const auto code = static_cast<size_t>(status.code());
  metrics_.failures[std::min(code, metrics_.failures.size() - 1)]->Increment();
}

void ShardClient::Answered(const ShardAttempt& attempt) {
  const double seconds =
      std::chrono::duration<double>(attempt.end - attempt.start).count();
  metrics_.duration->Observe(seconds);
  metrics_.rows->Increment(static_cast<double>(attempt.rows));
  const size_t size_class = SizeClass(attempt.rows);
  absl::MutexLock lock(&mutex_);
  if (times_.size() <= size_class) times_.resize(size_class + 1);
  Times& times = times_[size_class];
  if (times.seconds.size() < Times::kLast) {
    times.seconds.push_back(seconds);
  } else {
    times.seconds[times.next++ % Times::kLast] = seconds;
  }
}

}  // namespace moe
