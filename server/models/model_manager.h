// Loads models when the server starts, and loads, reloads and unloads them
// while it runs.
//
// A new version is loaded, checked and warmed up beside the old one and then
// takes its place at once; requests finish with the version that they began
// with, and its memory goes back to the system. If anything is wrong with the
// new version, the old one stays.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/executor.h"
#include "router/models/model.h"
#include "router/models/model_spec.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"
#include "server/metrics/metrics.h"
#include "server/models/model_reaper.h"
#include "server/models/model_source.h"

namespace moe {

struct ModelManagerOptions {
  std::vector<ModelSource> models;
  std::string repository;  // empty = none
  bool demo = false;
  LoadOptions load;  // `part` is not used
  // What this process holds of a model; null: all.
  std::function<ModelPart(const std::string& model)> part;
  // Waits for what is elsewhere of a model that has been loaded; may be null.
  std::function<absl::Status(const std::string& model)> await_rest;
  // Called after models have come or gone, or another version has; may be null.
  std::function<void()> on_change;
  ExpertMetrics expert_metrics = ExpertMetrics::kAuto;  // as of the Metrics
  // How often to look for changes on disk; zero = never. A change counts once
  // it has been the same for two looks: files take their time to be copied.
  absl::Duration poll = absl::ZeroDuration();
  // What the repository holds; reads a disk, which may take its time.
  std::function<absl::StatusOr<Repository>(const std::string& repository)>
      list_repository = ListRepository;
  // Bytes that may still be allocated, if that is known.
  std::function<std::optional<int64_t>()> available_memory;
};

// A model, or what is left of it.
struct ModelStatus {
  enum class State { kLoading, kReady, kUnavailable };
  std::string name;
  State state = State::kUnavailable;
  // Why it is unavailable, or why its last reload failed; may be empty.
  std::string reason;
};

// Thread-safe. All work is done by one thread, one thing after the other.
class ModelManager {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;
  // Loads, unloads and looks that may wait, beside the one that runs.
  static constexpr size_t kMaxJobs = 64;

  // executor: what the models run on. It loads what is there from the start,
  //           with all threads; later loads use their own, fewer threads.
  // All must outlive the manager.
  ModelManager(ModelManagerOptions options, Executor* executor, Engine* engine,
               ModelRegistry* registry, Metrics* metrics);
  // Waits for what is being loaded.
  ~ModelManager();
  ModelManager(const ModelManager&) = delete;
  ModelManager& operator=(const ModelManager&) = delete;

  // Finds out which models there are to be, and lists them as loading. Once,
  // before LoadAll.
  // Errors: those of ListRepository; INVALID_ARGUMENT for a name that comes
  // twice.
  absl::Status AnnounceAll();
  // Loads all models, and waits for it. Once.
  // Errors: of the first model that fails, naming it.
  absl::Status LoadAll();

  // Loads a model, or another version of it. `done` is called once, from some
  // thread.
  // Errors: NOT_FOUND if there is no such model, also in the repository;
  // RESOURCE_EXHAUSTED if it does not fit into memory, or kMaxJobs wait
  // already; those of Checkpoint::Open and LoadModel, UNAVAILABLE when
  // draining.
  void Load(absl::string_view name, Done done);
  // Stops serving a model. Errors: NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE.
  void Unload(absl::string_view name, Done done);
  // Looks for changes on disk: models whose files have changed are loaded
  // again, those that are new in the repository loaded, those that are gone
  // from it unloaded. Does nothing more if kMaxJobs wait already.
  void LookForChanges();

  // All models, by name.
  std::vector<ModelStatus> List() const;

  // Answers those who wait for a load or unload, and any later ones, with
  // UNAVAILABLE. What is being loaded goes on unobserved.
  void BeginDrain();

 private:
  using Models = std::vector<std::shared_ptr<const ServedModel>>;

  // A folder, and what is served from it.
  struct Source {
    std::string directory;  // empty: the demo model
    bool in_repository = false;
    bool wanted = true;  // false after Unload
    bool loading = false;
    // Names of models: one, or one per part of the checkpoint. Empty until it
    // has been loaded.
    std::vector<std::string> served;
    std::string error;  // of the last attempt
    std::string stamp;  // of the files at the last attempt
    std::string seen;   // of the files at the last look
  };

  struct Job {
    absl::AnyInvocable<absl::Status()> run;
    Done done;
  };

  void Enqueue(Job job);
  void Run();

  // ---- on the thread that does the work

  absl::Status AddSources();
  absl::Status LoadAllNow();
  // The source that is called `name`, or that serves a model of this name; one
  // that has appeared in the repository, too. Errors: NOT_FOUND.
  absl::StatusOr<std::string> FindSource(const std::string& name);
  absl::Status LoadNow(const std::string& source, Executor& executor);
  absl::Status UnloadNow(const std::string& source);
  // settled: only changes that are as they were at the last look.
  void LookNow(bool settled);
  void LookAtRepository();
  // Logs those that were not among the last ones.
  void WarnOfLeftOut(const std::vector<LeftOut>& left_out);
  // All models of a folder, loaded and warmed up.
  absl::StatusOr<Models> OpenWithinMemory(const std::string& source,
                                          const std::string& directory,
                                          Executor& executor);
  absl::StatusOr<Models> Open(const std::string& source,
                              const std::string& directory, Executor& executor);
  // How to load the model of that name.
  LoadOptions LoadOptionsOf(const std::string& name) const;
  absl::Status CheckMemory(const std::string& source,
                           const Checkpoint& checkpoint,
                           const std::vector<ModelSpec>& specs) const;
  absl::StatusOr<std::shared_ptr<const ServedModel>> WarmedUp(
      const std::string& name, std::unique_ptr<Model> model, absl::Time start);
  // Waits. False if the manager drains by then.
  bool Pause(absl::Duration duration) const;
  std::vector<std::unique_ptr<LayerMetrics>> AddMetrics(const std::string& name,
                                                        const Model& model);
  // Whether no other source serves a model of these names.
  absl::Status CheckNames(const std::string& source,
                          const Models& models) const;
  // In place of `former`, what the source served until now; returns the names.
  std::vector<std::string> Publish(const Models& models,
                                   const std::vector<std::string>& former);
  void Announce(const std::string& name);
  void Withdraw(const std::string& name);
  Source SourceOf(const std::string& source) const;

  const ModelManagerOptions options_;
  Executor& executor_;
  Engine& engine_;
  ModelRegistry& registry_;
  Metrics& metrics_;
  Executor reload_executor_;
  ModelReaper reaper_;

  mutable absl::Mutex mutex_;
  absl::btree_map<std::string, Source> sources_ ABSL_GUARDED_BY(mutex_);
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  Done running_done_ ABSL_GUARDED_BY(mutex_);  // of the job that runs
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // What WarnOfLeftOut was told last, as text.
  absl::btree_set<std::string> left_out_ ABSL_GUARDED_BY(mutex_);

  // For the thread that does the work.
  bool all_loaded_ = false;
  std::string repository_error_;  // the last one that was logged

  std::thread thread_;  // last: uses all of the above
};

}  // namespace moe
