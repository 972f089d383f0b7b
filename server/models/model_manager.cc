#include "server/models/model_manager.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "router/models/figures.h"
#include "server/common/bytes_text.h"
#include "server/common/logging.h"
#include "server/metrics/process_metrics.h"
#include "server/models/load_progress.h"
#include "server/models/warm_up.h"

namespace moe {
namespace {

constexpr char kDemo[] = "demo";

// Loading beside requests leaves most of the machine to them. One thread on
// each NUMA node at least: memory belongs to the node that writes it first.
int ReloadThreads(const Executor& compute) {
  const auto nodes = static_cast<int>(compute.node_threads().size());
  return std::max(nodes, compute.num_threads() / 4);
}

absl::Status Draining() {
  return absl::UnavailableError("server is draining; retry elsewhere");
}

absl::Status Naming(const std::string& source, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("model ", source, ": ", status.message()));
}

// The name of the model, or of the part of it, that a spec describes.
std::string NameOf(const std::string& source, const ModelSpec& spec) {
  return spec.part.empty() ? source : absl::StrCat(source, ".", spec.part);
}

// Whether `name` is what the Open Inference Protocol calls a layer of `model`.
bool IsLayerName(absl::string_view name, absl::string_view model) {
  return absl::ConsumePrefix(&name, model) &&
         absl::ConsumePrefix(&name, ".layers.") && !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c));
         });
}

// Whether clients can tell two models apart by name.
absl::Status CheckDistinct(const std::string& name, const std::string& other) {
  if (name == other) {
    return absl::InvalidArgumentError(
        absl::StrCat("want names that no other model has, got \"", name, "\""));
  }
  for (const auto& [layer, model] :
       {std::make_pair(name, other), std::make_pair(other, name)}) {
    if (!IsLayerName(layer, model)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "want names that are no layer's of another model in the Open Inference "
        "Protocol, got \"",
        name, "\" beside \"", other, "\""));
  }
  return absl::OkStatus();
}

bool Contains(const std::vector<std::string>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

ModelManager::ModelManager(ModelManagerOptions options, Executor* executor,
                           Engine* engine, ModelRegistry* registry,
                           Metrics* metrics)
    : options_(std::move(options)),
      executor_(*executor),
      engine_(*engine),
      registry_(*registry),
      metrics_(*metrics),
      reload_executor_(ReloadThreads(*executor), executor->nodes()) {
  thread_ = std::thread([this] { Run(); });
}

ModelManager::~ModelManager() {
  BeginDrain();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status ModelManager::AnnounceAll() {
  MOE_RETURN_IF_ERROR(AddSources());
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, source] : sources_) Announce(name);
  return absl::OkStatus();
}

absl::Status ModelManager::LoadAll() {
  absl::Notification loaded;
  absl::Status result;
  Enqueue({.run = [this] { return LoadAllNow(); },
           .done =
               [&](const absl::Status& status) {
                 result = status;
                 loaded.Notify();
               }});
  loaded.WaitForNotification();
  return result;
}

void ModelManager::Load(absl::string_view name, Done done) {
  Enqueue({.run = [this, wanted = std::string(name)]() -> absl::Status {
             MOE_ASSIGN_OR_RETURN(const std::string source, FindSource(wanted));
             return Naming(source, LoadNow(source, reload_executor_));
           },
           .done = std::move(done)});
}

void ModelManager::Unload(absl::string_view name, Done done) {
  Enqueue({.run = [this, wanted = std::string(name)]() -> absl::Status {
             MOE_ASSIGN_OR_RETURN(const std::string source, FindSource(wanted));
             return UnloadNow(source);
           },
           .done = std::move(done)});
}

void ModelManager::LookForChanges() {
  Enqueue({.run =
               [this] {
                 LogInfo("looking for models that have changed");
                 LookNow(/*settled=*/false);
                 return absl::OkStatus();
               },
           .done = nullptr});
}

std::vector<ModelStatus> ModelManager::List() const {
  std::vector<ModelStatus> result;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, source] : sources_) {
    for (const std::string& model : source.served) {
      result.push_back({.name = model,
                        .state = ModelStatus::State::kReady,
                        .reason = source.error});
    }
    if (!source.served.empty()) continue;
    result.push_back({.name = name,
                      .state = source.loading
                                   ? ModelStatus::State::kLoading
                                   : ModelStatus::State::kUnavailable,
                      .reason = source.error});
  }
  return result;
}

void ModelManager::BeginDrain() {
  std::vector<Done> waiting;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    waiting.push_back(std::exchange(running_done_, nullptr));
    for (Job& job : jobs_) waiting.push_back(std::move(job.done));
    jobs_.clear();
  }
  for (Done& done : waiting) {
    if (done) done(Draining());
  }
}

void ModelManager::Enqueue(Job job) {
  absl::Status refusal;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      refusal = Draining();
    } else if (jobs_.size() >= kMaxJobs) {
      refusal = absl::ResourceExhaustedError(absl::StrCat(
          "want at most ", kMaxJobs, " loads and unloads waiting; back off"));
    } else {
      jobs_.push_back(std::move(job));
      return;
    }
  }
  if (job.done) job.done(refusal);
}

void ModelManager::Run() {
  const absl::Duration poll = options_.poll > absl::ZeroDuration()
                                  ? options_.poll
                                  : absl::InfiniteDuration();
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty();
  };
  while (true) {
    Job job;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&ready), poll);
      if (stopping_) return;
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
        running_done_ = std::move(job.done);
      }
    }
    if (!job.run) {
      if (all_loaded_) LookNow(/*settled=*/true);
      continue;
    }
    const absl::Status status = job.run();
    Done done;
    {
      absl::MutexLock lock(&mutex_);
      done = std::exchange(running_done_, nullptr);
    }
    if (done) done(status);
  }
}

absl::Status ModelManager::AddSources() {
  Repository listed;
  if (!options_.repository.empty()) {
    MOE_ASSIGN_OR_RETURN(listed, options_.list_repository(options_.repository));
    WarnOfLeftOut(listed.left_out);
  }
  absl::MutexLock lock(&mutex_);
  if (options_.demo) sources_[kDemo] = {};
  for (const ModelSource& model : options_.models) {
    sources_[model.name].directory = model.directory;
  }
  for (const ModelSource& model : listed.models) {
    Source& source = sources_[model.name];
    if (!source.directory.empty() || (options_.demo && model.name == kDemo)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--model_repository: want names that no other model has, got \"",
          model.name, "\""));
    }
    source.directory = model.directory;
    source.in_repository = true;
  }
  return absl::OkStatus();
}

absl::Status ModelManager::LoadAllNow() {
  std::vector<std::string> names;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, source] : sources_) names.push_back(name);
  }
  for (const std::string& name : names) {
    MOE_RETURN_IF_ERROR(Naming(name, LoadNow(name, executor_)));
  }
  all_loaded_ = true;
  return absl::OkStatus();
}

ModelManager::Source ModelManager::SourceOf(const std::string& source) const {
  absl::MutexLock lock(&mutex_);
  const auto found = sources_.find(source);
  return found == sources_.end() ? Source() : found->second;
}

absl::StatusOr<std::string> ModelManager::FindSource(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [source_name, source] : sources_) {
      if (source_name == name || Contains(source.served, name)) {
        return source_name;
      }
    }
  }
  if (!options_.repository.empty() && IsModelName(name)) {
    // The disk is read without the lock, which RPCs take. Nobody adds sources
    // meanwhile: this thread alone does.
    const auto listed = options_.list_repository(options_.repository);
    for (const ModelSource& model :
         listed.ok() ? listed->models : std::vector<ModelSource>()) {
      if (model.name != name) continue;
      absl::MutexLock lock(&mutex_);
      Source& source = sources_[name];
      source.directory = model.directory;
      source.in_repository = true;
      return name;
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "model: no model named \"", absl::Utf8SafeCEscape(name.substr(0, 64)),
      options_.repository.empty() ? "\"" : "\" in the repository"));
}

absl::Status ModelManager::LoadNow(const std::string& source,
                                   Executor& executor) {
  const Source before = SourceOf(source);
  const bool first = before.served.empty();
  if (first) Announce(source);
  {
    absl::MutexLock lock(&mutex_);
    sources_[source].loading = true;
  }
  // Taken first: files that change meanwhile have changed since.
  std::string stamp =
      before.directory.empty() ? "" : FolderStamp(before.directory);
  const absl::StatusOr<Models> models =
      OpenWithinMemory(source, before.directory, executor);
  std::vector<std::string> served = before.served;
  if (models.ok()) served = Publish(*models, before.served);
  if (first && !Contains(served, source)) Withdraw(source);
  metrics_.ModelLoaded(models.ok());
  if (!models.ok() && !first) {
    LogWarning(absl::StrCat("model ", source,
                            ": the new version is no good, the old one stays: ",
                            models.status().message()));
  } else if (!models.ok() && all_loaded_) {
    LogWarning(absl::StrCat("model ", source, ": ", models.status().message()));
  }
  absl::MutexLock lock(&mutex_);
  Source& after = sources_[source];
  after.loading = false;
  after.wanted = true;
  after.served = std::move(served);
  after.error = std::string(models.status().message());
  after.stamp = std::move(stamp);
  return models.status();
}

absl::Status ModelManager::UnloadNow(const std::string& source) {
  const Source before = SourceOf(source);
  Publish({}, before.served);
  if (!before.served.empty()) {
    LogInfo(absl::StrCat("model ", source, ": unloaded"));
  }
  absl::MutexLock lock(&mutex_);
  Source& after = sources_[source];
  after.wanted = false;
  after.served.clear();
  after.error = "unloaded";
  return absl::OkStatus();
}

void ModelManager::LookNow(bool settled) {
  if (!options_.repository.empty()) LookAtRepository();
  std::vector<std::string> names;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, source] : sources_) {
      if (source.wanted && !source.directory.empty()) names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    const Source source = SourceOf(name);
    std::string stamp = FolderStamp(source.directory);
    if (stamp == source.stamp) continue;
    if (settled && stamp != source.seen) {
      absl::MutexLock lock(&mutex_);
      sources_[name].seen = std::move(stamp);
      continue;
    }
    // Reported there.
    LoadNow(name, reload_executor_).IgnoreError();
  }
}

void ModelManager::LookAtRepository() {
  const auto listed = options_.list_repository(options_.repository);
  // A repository that is empty or can't be read is taken for a fault of the
  // file system, not for the wish to serve nothing.
  std::string error(listed.status().message());
  if (error != repository_error_ && !error.empty()) LogWarning(error);
  repository_error_ = std::move(error);
  if (!listed.ok()) return;
  WarnOfLeftOut(listed->left_out);
  std::vector<std::string> gone;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, source] : sources_) {
      const auto is_it = [&name = name](const auto& folder) {
        return folder.name == name;
      };
      // A folder that is left out now may be in the midst of being copied: its
      // model stays, as with any new version that is no good.
      if (source.in_repository &&
          std::none_of(listed->models.begin(), listed->models.end(), is_it) &&
          std::none_of(listed->left_out.begin(), listed->left_out.end(),
                       is_it)) {
        gone.push_back(name);
      }
    }
  }
  for (const std::string& name : gone) {
    UnloadNow(name).IgnoreError();  // never fails
    absl::MutexLock lock(&mutex_);
    sources_.erase(name);
  }
  absl::MutexLock lock(&mutex_);
  for (const ModelSource& model : listed->models) {
    if (sources_.contains(model.name)) continue;
    Source& source = sources_[model.name];
    source.directory = model.directory;
    source.in_repository = true;
  }
}

void ModelManager::WarnOfLeftOut(const std::vector<LeftOut>& left_out) {
  absl::btree_set<std::string> now;
  for (const LeftOut& folder : left_out) now.insert(LeftOutText(folder));
  absl::btree_set<std::string> before;
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(left_out_, now);
  }
  for (const std::string& text : now) {
    if (before.contains(text)) continue;
    LogWarning(absl::StrCat("--model_repository: left out ", text));
  }
}

absl::StatusOr<ModelManager::Models> ModelManager::OpenWithinMemory(
    const std::string& source, const std::string& directory,
    Executor& executor) {
  // What a folder says is bounded, but memory may be short all the same: that
  // is the end of this load, not of the models that are served.
  constexpr char kShort[] =
      "memory: not enough to load the model; free some, or serve fewer layers "
      "or another weight_format";
  try {
    return Open(source, directory, executor);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(kShort);
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError(kShort);
  }
}

absl::StatusOr<ModelManager::Models> ModelManager::Open(
    const std::string& source, const std::string& directory,
    Executor& executor) {
  absl::Time start = absl::Now();
  Models models;
  if (directory.empty()) {
    MOE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                         LoadDemoModel(LoadOptionsOf(source), executor));
    MOE_ASSIGN_OR_RETURN(auto demo, WarmedUp(source, std::move(model), start));
    models.push_back(std::move(demo));
    return models;
  }
  MOE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                       Checkpoint::Open(directory));
  MOE_ASSIGN_OR_RETURN(std::vector<ModelSpec> specs,
                       DescribeModels(checkpoint));
  MOE_RETURN_IF_ERROR(CheckMemory(source, checkpoint, specs));
  for (ModelSpec& spec : specs) {
    const std::string name = NameOf(source, spec);
    LoadProgressReporter reporter(name);
    MOE_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        LoadModel(
            checkpoint, std::move(spec), LoadOptionsOf(name), executor,
            [&](const LoadProgress& progress) { reporter.Report(progress); }));
    reporter.Done(model->weights_bytes());
    for (const std::string& doubt : model->doubts()) {
      LogWarning(absl::StrCat("model ", name, ": ", doubt));
    }
    MOE_ASSIGN_OR_RETURN(auto served, WarmedUp(name, std::move(model), start));
    models.push_back(std::move(served));
    start = absl::Now();
  }
  MOE_RETURN_IF_ERROR(CheckNames(source, models));
  return models;
}

LoadOptions ModelManager::LoadOptionsOf(const std::string& name) const {
  LoadOptions options = options_.load;
  const absl::Span<const int> node_threads = executor_.node_threads();
  options.node_threads.assign(node_threads.begin(), node_threads.end());
  if (options_.part != nullptr) options.part = options_.part(name);
  return options;
}

absl::Status ModelManager::CheckMemory(
    const std::string& source, const Checkpoint& checkpoint,
    const std::vector<ModelSpec>& specs) const {
  const std::optional<int64_t> available = options_.available_memory();
  if (!available.has_value()) return absl::OkStatus();
  const WeightFormat format = options_.load.engine == ExpertEngine::kOneDnn
                                  ? WeightFormat::kF32
                                  : options_.load.weight_format;
  const std::vector<int>& wanted = options_.load.layers;
  int64_t bytes = 0;
  for (const ModelSpec& spec : specs) {
    const ModelPart part = LoadOptionsOf(NameOf(source, spec)).part;
    for (const LayerSpec& layer : spec.layers) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(),
                                       layer.index) == wanted.end()) {
        continue;
      }
      // Layers that can't be opened are LoadModel's to report.
      const auto layer_bytes = LayerBytes(checkpoint, layer, format, part);
      if (layer_bytes.ok()) bytes += *layer_bytes;
    }
  }
  if (bytes <= *available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: want ", BytesText(static_cast<double>(bytes)),
      " for the weights, got ", BytesText(static_cast<double>(*available)),
      " that can be allocated; free some, or serve fewer layers or another "
      "weight_format"));
}

std::vector<std::unique_ptr<LayerMetrics>> ModelManager::AddMetrics(
    const std::string& name, const Model& model) {
  std::vector<LayerCost> layers;
  int64_t num_experts = 0;
  for (const ModelLayer& layer : model.layers()) {
    layers.push_back(CostOf(layer));
    num_experts += layers.back().num_experts;
  }
  ModelMetrics metrics = metrics_.AddModel(name, layers);
  if (options_.expert_metrics == ExpertMetrics::kAuto) {
    LogInfo(
        absl::StrFormat("model %s: metrics of %s (%d experts in %d layers; "
                        "--expert_metrics=auto)",
                        name,
                        metrics.detail == ExpertMetrics::kFull
                            ? "each expert"
                            : "each layer, since each expert would be too many",
                        num_experts, layers.size()));
  }
  return std::move(metrics.layers);
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ModelManager::WarmedUp(
    const std::string& name, std::unique_ptr<Model> model, absl::Time start) {
  auto owned = std::make_unique<ServedModel>();
  owned->name = name;
  owned->weight_format =
      std::string(WeightFormatName(options_.load.weight_format));
  owned->load_seconds = absl::ToDoubleSeconds(absl::Now() - start);
  owned->layer_metrics = AddMetrics(name, *model);
  owned->layer_statistics =
      std::make_unique<LayerStatistics[]>(model->layers().size());
  owned->model = std::move(model);
  std::shared_ptr<const ServedModel> served = reaper_.Own(std::move(owned));
  if (options_.await_rest != nullptr) {
    MOE_RETURN_IF_ERROR(options_.await_rest(name));
  }
  absl::Status status = WarmUp(served, engine_);
  // Requests come first; and what is elsewhere may have gone again.
  while (absl::IsResourceExhausted(status) ||
         (absl::IsUnavailable(status) && options_.await_rest != nullptr)) {
    if (!Pause(absl::FromChrono(engine_.RetryAfter()))) return Draining();
    if (options_.await_rest != nullptr) {
      MOE_RETURN_IF_ERROR(options_.await_rest(name));
    }
    status = WarmUp(served, engine_);
  }
  MOE_RETURN_IF_ERROR(status);
  return served;
}

bool ModelManager::Pause(absl::Duration duration) const {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&draining_), duration);
}

absl::Status ModelManager::CheckNames(const std::string& source,
                                      const Models& models) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& model : models) {
    for (const auto& [other_source, other] : sources_) {
      if (other_source == source) continue;
      std::vector<std::string> names = other.served;
      names.push_back(other_source);
      for (const std::string& name : names) {
        MOE_RETURN_IF_ERROR(CheckDistinct(model->name, name));
      }
    }
  }
  return absl::OkStatus();
}

void ModelManager::Announce(const std::string& name) {
  registry_.Announce(name);
  metrics_.ModelAnnounced(name);
}

void ModelManager::Withdraw(const std::string& name) {
  registry_.Withdraw(name);
  metrics_.ModelWithdrawn(name);
}

std::vector<std::string> ModelManager::Publish(
    const Models& models, const std::vector<std::string>& former) {
  std::vector<std::string> names;
  for (const auto& model : models) {
    registry_.Publish(model);
    metrics_.ModelReady(model->name, model->model->weights(),
                        model->load_seconds);
    names.push_back(model->name);
  }
  for (const std::string& name : former) {
    if (!Contains(names, name)) Withdraw(name);
  }
  metrics_.SetHugePages(HugePagesBytes());
  if (options_.on_change != nullptr) options_.on_change();
  return names;
}

}  // namespace moe
