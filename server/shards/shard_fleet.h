// All shards of a front: who they are, what they hold, and whether they do.
//
// A thread of its own asks shards what they hold when they are there anew. The
// placement file is read again when it has changed, on the watcher's thread.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "moe/shards/shards.pb.h"
#include "router/models/model.h"
#include "server/common/file_watcher.h"
#include "server/metrics/metrics.h"
#include "server/placement/placement.h"
#include "server/shards/shard_client.h"
#include "server/shards/spread_layer.h"

namespace moe {

struct ShardFleetOptions {
  std::string placement_file;
  ShardClientOptions client;
  // The type of rows on their way to shards and back: F32 or BF16.
  v1::DType wire_dtype = v1::F32;
  // How long a shard may take for a call, retries included.
  absl::Duration timeout = absl::Seconds(30);
  // A call that takes longer than this percentile of those before is made again
  // at another replica; 0 = never.
  double hedge_percentile = 0;
};

// The shards at one time. Immutable, but for the clients.
struct ShardSet {
  Placement placement;
  std::vector<std::shared_ptr<ShardClient>> clients;  // as placement.shards()
};

// Whether a shard says of itself that it holds what the placement wants of it.
// Errors: FAILED_PRECONDITION naming the shard, and what differs.
absl::Status CheckShard(const Placement& placement, int shard,
                        const SpreadLayer& layer,
                        const shards::ShardDescription& description);

// Thread-safe.
class ShardFleet {
 public:
  // The watcher, which has to stop before the fleet goes, tells of changes of
  // the placement file.
  // Errors: those of Placement::ReadFile.
  static absl::StatusOr<std::unique_ptr<ShardFleet>> Open(
      const ShardFleetOptions& options, FileWatcher* watcher, Metrics* metrics);
  ~ShardFleet();
  ShardFleet(const ShardFleet&) = delete;
  ShardFleet& operator=(const ShardFleet&) = delete;

  const ShardFleetOptions& options() const { return options_; }
  Metrics& metrics() const { return metrics_; }

  // See ModelPart::connect; for the layers of one model.
  // Errors: those of Placement::CheckCover.
  absl::StatusOr<std::unique_ptr<ExpertShard>> Connect(const std::string& model,
                                                       SpreadExperts experts);

  // Waits until every shard that has experts of the model is up.
  // Errors: FAILED_PRECONDITION if one holds something else; UNAVAILABLE after
  // Stop.
  absl::Status WaitUntilUp(const std::string& model);
  // Ends all waiting, and the watch over the shards. By one thread.
  void Stop();
  // Calls `fn`, on a thread of the fleet's, whenever a shard has come or gone.
  // Once.
  void OnChange(std::function<void()> fn) {
    absl::MutexLock lock(&mutex_);
    on_change_ = std::move(fn);
  }

  // The shards that have experts of the model, in the order of the placement.
  std::vector<std::shared_ptr<const ShardClient>> ShardsOfModel(
      const std::string& model) const;

  std::shared_ptr<const ShardSet> shards() const {
    absl::MutexLock lock(&mutex_);
    return shards_;
  }

  // For the experts of a layer, while they live. May wait while all layers are
  // walked through.
  void Register(const SpreadLayer* layer);
  void Unregister(const SpreadLayer* layer);

 private:
  struct Layer {
    const SpreadLayer* layer;
    std::vector<size_t> shards;  // that have experts of it, ascending
  };
  // The shards that have experts of each model.
  using ClientsByModel =
      std::map<std::string, std::vector<std::shared_ptr<const ShardClient>>>;

  ShardFleet(const ShardFleetOptions& options, Metrics* metrics);

  void UsePlacement(Placement placement);
  void Watch();
  void LookAtPlacement();
  // Asks a shard what it holds; what is wrong with it, if it answers and
  // anything is.
  absl::Status LookAt(const ShardSet& shards, size_t shard);
  // Does nothing to a shard that the placement no longer has.
  void SetUp(ShardClient& client, bool up);
  // Groups all layers, whose shards are indices of these.
  std::shared_ptr<const ClientsByModel> GroupByModel(const ShardSet& shards)
      const ABSL_EXCLUSIVE_LOCKS_REQUIRED(layers_mutex_);
  // Whether it is known of all shards of the model that they are up, or of one
  // that it is no good; or the fleet stops.
  bool Settled(const std::string& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is wrong with a shard of the model that answers and is no good.
  absl::Status FaultOf(const std::string& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The shards of the model that are not known to be up.
  std::vector<std::string> Missing(const std::string& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Empty for a model that has no experts on shards.
  static std::vector<std::shared_ptr<const ShardClient>> ClientsOf(
      const ClientsByModel& clients, const std::string& model);

  const ShardFleetOptions options_;
  Metrics& metrics_;

  // Held while layers and placement are walked through, or change: for
  // milliseconds where there are many. Before mutex_.
  absl::Mutex layers_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::vector<Layer> layers_ ABSL_GUARDED_BY(layers_mutex_);

  // Held for a moment only: each batch takes it.
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ShardSet> shards_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const ClientsByModel> clients_by_model_
      ABSL_GUARDED_BY(mutex_);
  // Grows when all shards must be asked anew: layers or shards have come.
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  // All have been asked since that many changes.
  int64_t asked_changes_ ABSL_GUARDED_BY(mutex_) = 0;
  // By name: why a shard that answers is no good.
  std::map<std::string, absl::Status> faults_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_change_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace moe
