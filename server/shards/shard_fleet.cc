#include "server/shards/shard_fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experts/base/status_macros.h"
#include "server/common/logging.h"
#include "server/common/version.h"
#include "server/shards/sharded_experts.h"

namespace moe {
namespace {

// Between looks at the shards.
constexpr absl::Duration kLookInterval = absl::Milliseconds(100);
// How long somebody waits for shards until the log tells of it, and then
// between lines.
constexpr absl::Duration kTellAfter = absl::Seconds(1);
constexpr absl::Duration kTellInterval = absl::Seconds(5);

absl::Status Differs(const std::string& shard, const SpreadLayer& layer,
                     absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("shard ", shard, ": model ",
                                                    layer.model, ", layer ",
                                                    layer.layer, ": ", what));
}

absl::Status CheckRelease(const std::string& shard,
                          const shards::ShardDescription& description) {
  if (description.version() == kVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("shard ", shard, ": is of release \"",
                   absl::Utf8SafeCEscape(description.version().substr(0, 64)),
                   "\", want ", kVersion, " as this front"));
}

// The shards that have experts of a layer, ascending.
std::vector<size_t> ShardsOf(const Placement& placement,
                             const SpreadLayer& layer) {
  std::vector<size_t> with_experts;
  for (size_t s = 0; s < placement.shards().size(); ++s) {
    if (!placement
             .ExpertsOf(static_cast<int>(s), layer.model, layer.layer,
                        layer.num_experts())
             .empty()) {
      with_experts.push_back(s);
    }
  }
  return with_experts;
}

}  // namespace

absl::Status CheckShard(const Placement& placement, int shard,
                        const SpreadLayer& layer,
                        const shards::ShardDescription& description) {
  const std::string& name = placement.shards()[static_cast<size_t>(shard)].name;
  const std::vector<int32_t> wanted =
      placement.ExpertsOf(shard, layer.model, layer.layer, layer.num_experts());
  if (wanted.empty()) return absl::OkStatus();
  const shards::ShardLayer* held = nullptr;
  for (const shards::ShardModel& model : description.models()) {
    if (model.name() != layer.model) continue;
    for (const shards::ShardLayer& of_shard : model.layers()) {
      if (of_shard.layer() == layer.layer) held = &of_shard;
    }
  }
  if (held == nullptr) return Differs(name, layer, "is not there");
  if (held->d_model() != layer.expert.d_model ||
      held->num_experts() != layer.num_experts()) {
    return Differs(
        name, layer,
        absl::StrCat("want ", layer.num_experts(), " experts of d_model ",
                     layer.expert.d_model, ", got ", held->num_experts(),
                     " of ", held->d_model()));
  }
  for (const int32_t expert : wanted) {
    const auto& experts = held->experts();
    const auto found = std::lower_bound(experts.begin(), experts.end(), expert);
    const auto index = static_cast<int>(found - experts.begin());
    if (found == experts.end() || *found != expert ||
        index >= held->fingerprints_size()) {
      return Differs(name, layer, absl::StrCat("has no expert ", expert));
    }
    if (held->fingerprints(index) !=
        layer.fingerprints[static_cast<size_t>(expert)]) {
      return Differs(name, layer,
                     absl::StrCat("expert ", expert,
                                  " is another one there: other "
                                  "weights, weight format or release (",
                                  description.version(), ")"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShardFleet>> ShardFleet::Open(
    const ShardFleetOptions& options, FileWatcher* watcher, Metrics* metrics) {
  // Watched first: a file that changes meanwhile is read again.
  WatchedFiles file({options.placement_file});
  std::unique_ptr<ShardFleet> fleet(new ShardFleet(options, metrics));
  MOE_ASSIGN_OR_RETURN(Placement placement,
                       Placement::ReadFile(options.placement_file));
  fleet->UsePlacement(std::move(placement));
  watcher->Watch(std::move(file),
                 [raw = fleet.get()] { raw->LookAtPlacement(); });
  fleet->thread_ = std::thread([raw = fleet.get()] { raw->Watch(); });
  return fleet;
}

ShardFleet::ShardFleet(const ShardFleetOptions& options, Metrics* metrics)
    : options_(options), metrics_(*metrics) {}

ShardFleet::~ShardFleet() { Stop(); }

void ShardFleet::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (const auto& client : shards()->clients) client->StopDescribing();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<ExpertShard>> ShardFleet::Connect(
    const std::string& model, SpreadExperts experts) {
  SpreadLayer layer{.model = model,
                    .layer = experts.layer->index,
                    .expert = experts.layer->experts.expert,
                    .fingerprints = std::move(experts.fingerprints),
                    .local_ids = std::move(experts.local_ids)};
  MOE_RETURN_IF_ERROR(shards()->placement.CheckCover(
      model, layer.layer, layer.num_experts(), layer.local_ids));
  return std::make_unique<ShardedExperts>(std::move(layer),
                                          std::move(experts.local), this);
}

void ShardFleet::Register(const SpreadLayer* layer) {
  absl::MutexLock layers_lock(&layers_mutex_);
  const std::shared_ptr<const ShardSet> set = shards();
  layers_.push_back({layer, ShardsOf(set->placement, *layer)});
  auto clients = GroupByModel(*set);
  absl::MutexLock lock(&mutex_);
  clients_by_model_.swap(clients);
  ++changes_;
}

void ShardFleet::Unregister(const SpreadLayer* layer) {
  absl::MutexLock layers_lock(&layers_mutex_);
  layers_.erase(
      std::find_if(layers_.begin(), layers_.end(),
                   [layer](const Layer& l) { return l.layer == layer; }));
  auto clients = GroupByModel(*shards());
  absl::MutexLock lock(&mutex_);
  clients_by_model_.swap(clients);
}

std::shared_ptr<const ShardFleet::ClientsByModel> ShardFleet::GroupByModel(
    const ShardSet& shards) const {
  std::map<std::string, std::set<size_t>> with_experts;
  for (const Layer& layer : layers_) {
    with_experts[layer.layer->model].insert(layer.shards.begin(),
                                            layer.shards.end());
  }
  auto clients = std::make_shared<ClientsByModel>();
  for (const auto& [model, indices] : with_experts) {
    auto& of_model = (*clients)[model];
    for (const size_t s : indices) of_model.push_back(shards.clients[s]);
  }
  return clients;
}

std::vector<std::shared_ptr<const ShardClient>> ShardFleet::ClientsOf(
    const ClientsByModel& clients, const std::string& model) {
  const auto found = clients.find(model);
  if (found == clients.end()) return {};
  return found->second;
}

std::vector<std::shared_ptr<const ShardClient>> ShardFleet::ShardsOfModel(
    const std::string& model) const {
  std::shared_ptr<const ClientsByModel> clients;
  {
    absl::MutexLock lock(&mutex_);
    clients = clients_by_model_;
  }
  return ClientsOf(*clients, model);
}

absl::Status ShardFleet::WaitUntilUp(const std::string& model) {
  absl::Duration patience = kTellAfter;
  while (true) {
    std::vector<std::string> missing;
    {
      absl::MutexLock lock(&mutex_);
      const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return Settled(model);
      };
      if (mutex_.AwaitWithTimeout(absl::Condition(&settled), patience)) {
        if (stopping_) return absl::UnavailableError("server is stopping");
        return FaultOf(model);
      }
      missing = Missing(model);
    }
    LogInfo(absl::StrCat("model ", model, ": waiting for shards ",
                         absl::StrJoin(missing, ", ")));
    patience = kTellInterval;
  }
}

bool ShardFleet::Settled(const std::string& model) const {
  return stopping_ || !FaultOf(model).ok() || Missing(model).empty();
}

absl::Status ShardFleet::FaultOf(const std::string& model) const {
  for (const auto& shard : ClientsOf(*clients_by_model_, model)) {
    const auto fault = faults_.find(shard->name());
    if (fault != faults_.end()) return fault->second;
  }
  return absl::OkStatus();
}

std::vector<std::string> ShardFleet::Missing(const std::string& model) const {
  const bool asked = asked_changes_ == changes_;
  std::vector<std::string> names;
  for (const auto& shard : ClientsOf(*clients_by_model_, model)) {
    if (!asked || !shard->up()) names.push_back(shard->name());
  }
  return names;
}

void ShardFleet::UsePlacement(Placement placement) {
  auto set = std::make_shared<ShardSet>(
      ShardSet{.placement = std::move(placement), .clients = {}});
  absl::MutexLock layers_lock(&layers_mutex_);
  const std::shared_ptr<const ShardSet> old_set = shards();  // null at first
  std::vector<std::shared_ptr<ShardClient>> old_clients;
  if (old_set != nullptr) old_clients = old_set->clients;
  for (const Placement::Shard& shard : set->placement.shards()) {
    // A shard that stays keeps its connections.
    std::shared_ptr<ShardClient> client;
    for (const auto& old : old_clients) {
      if (old->name() == shard.name && old->targets() == shard.targets) {
        client = old;
      }
    }
    if (client == nullptr) {
      client = std::make_shared<ShardClient>(shard.name, shard.targets,
                                             options_.client,
                                             metrics_.AddShard(shard.name));
    }
    set->clients.push_back(std::move(client));
  }
  for (Layer& layer : layers_) {
    layer.shards = ShardsOf(set->placement, *layer.layer);
  }
  auto clients = GroupByModel(*set);
  absl::MutexLock lock(&mutex_);
  shards_ = set;
  clients_by_model_.swap(clients);
  ++changes_;
  for (const auto& old : old_clients) {
    if (!set->placement.Find(old->name()).has_value()) {
      old->SetUp(false);  // gone for good
    }
  }
}

void ShardFleet::Watch() {
  std::set<const ShardClient*> asked;  // and found to be there
  while (true) {
    std::shared_ptr<const ShardSet> shards;
    int64_t changes = 0;
    bool ask_all = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto stop = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_;
      };
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop), kLookInterval)) {
        return;
      }
      shards = shards_;
      changes = changes_;
      ask_all = asked_changes_ != changes_;
    }
    for (size_t s = 0; s < shards->clients.size(); ++s) {
      ShardClient& client = *shards->clients[s];
      if (!client.Connected()) {
        if (asked.erase(&client) > 0) {
          LogWarning(
              absl::StrCat("shard ", client.name(), ": no replica answers"));
        }
        SetUp(client, false);
        absl::MutexLock lock(&mutex_);
        faults_.erase(client.name());
      } else if (ask_all || !asked.contains(&client)) {
        if (LookAt(*shards, s).ok()) asked.insert(&client);
      }
    }
    if (ask_all) {
      absl::MutexLock lock(&mutex_);
      asked_changes_ = changes;
    }
  }
}

absl::Status ShardFleet::LookAt(const ShardSet& shards, size_t shard) {
  ShardClient& client = *shards.clients[shard];
  absl::Status status = absl::UnavailableError("no replica answers");
  for (const auto& description : client.Describe()) {
    if (absl::IsUnavailable(description.status()) ||
        absl::IsDeadlineExceeded(description.status()) ||
        absl::IsCancelled(description.status())) {
      continue;
    }
    if (absl::IsUnimplemented(description.status())) {
      status = absl::FailedPreconditionError(absl::StrCat(
          "shard ", client.name(),
          ": is no shard, or one of another release than this front, ",
          kVersion));
      break;
    }
    if (!description.ok()) {
      // A fault of the set-up, not of the hour: no token, or no shard at all.
      status = absl::FailedPreconditionError(absl::StrCat(
          "shard ", client.name(), ": does not say what it holds: ",
          absl::StatusCodeToString(description.status().code()), ": ",
          description.status().message()));
      break;
    }
    status = CheckRelease(client.name(), *description);
    if (!status.ok()) break;
    absl::MutexLock lock(&layers_mutex_);
    for (const Layer& registered : layers_) {
      status.Update(CheckShard(shards.placement, static_cast<int>(shard),
                               *registered.layer, *description));
    }
    if (!status.ok()) break;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!absl::IsFailedPrecondition(status)) {
      faults_.erase(client.name());
    } else if (faults_.insert_or_assign(client.name(), status).second) {
      LogWarning(status.message());
    }
  }
  SetUp(client, status.ok());
  return status;
}

void ShardFleet::SetUp(ShardClient& client, bool up) {
  std::function<void()> on_change;
  {
    absl::MutexLock lock(&mutex_);
    const auto& clients = shards_->clients;
    if (client.up() == up ||
        std::none_of(clients.begin(), clients.end(), [&](const auto& placed) {
          return placed.get() == &client;
        })) {
      return;
    }
    client.SetUp(up);
    on_change = on_change_;
  }
  if (up) LogInfo(absl::StrCat("shard ", client.name(), ": up"));
  if (on_change) on_change();
}

void ShardFleet::LookAtPlacement() {
  absl::StatusOr<Placement> placement =
      Placement::ReadFile(options_.placement_file);
  absl::Status status = placement.status();
  if (status.ok()) {
    absl::MutexLock lock(&layers_mutex_);
    for (const Layer& registered : layers_) {
      const SpreadLayer& layer = *registered.layer;
      status.Update(placement->CheckCover(
          layer.model, layer.layer, layer.num_experts(), layer.local_ids));
    }
  }
  if (!status.ok()) {
    LogWarning(absl::StrCat("the new placement is no good, the old one stays: ",
                            status.message()));
    return;
  }
  LogInfo("the placement has changed");
  UsePlacement(*std::move(placement));
}

}  // namespace moe
