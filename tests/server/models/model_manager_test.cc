#include "server/models/model_manager.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/common/logging.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/tensors.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = ModelStatus::State;

constexpr char kConfig[] = R"({
  "model_type": "olmoe", "hidden_act": "silu", "hidden_size": 8,
  "intermediate_size": 4, "norm_topk_prob": false, "num_experts": 2,
  "num_experts_per_tok": 1, "num_hidden_layers": 1})";

// A file of a checkpoint in place of the former one, in one step.
void Replace(const std::string& folder, const std::string& name,
             const std::vector<TestTensor>& tensors) {
  const std::string to = absl::StrCat(folder, "/", name);
  WriteTensors(absl::StrCat(to, ".new"), tensors);
  std::filesystem::rename(absl::StrCat(to, ".new"), to);
}

// A model of one layer whose weights are all `value`.
void WriteModel(const std::string& folder, float value) {
  std::filesystem::create_directories(folder);
  std::ofstream(absl::StrCat(folder, "/config.json")) << kConfig;
  const auto tensor = [&](const std::string& name, int64_t rows, int64_t cols) {
    return FloatTensor(
        absl::StrCat("model.layers.0.mlp.", name, ".weight"), DType::kF32,
        {rows, cols},
        std::vector<float>(static_cast<size_t>(rows * cols), value));
  };
  std::vector<TestTensor> tensors = {tensor("gate", 2, 8)};
  for (const char* expert : {"experts.0.", "experts.1."}) {
    tensors.push_back(tensor(absl::StrCat(expert, "gate_proj"), 4, 8));
    tensors.push_back(tensor(absl::StrCat(expert, "up_proj"), 4, 8));
    tensors.push_back(tensor(absl::StrCat(expert, "down_proj"), 8, 4));
  }
  Replace(folder, "model.safetensors", tensors);
}

// A checkpoint without its experts.
void WriteBrokenModel(const std::string& folder) {
  Replace(folder, "model.safetensors",
          {FloatTensor("model.layers.0.mlp.gate.weight", DType::kF32, {2, 8},
                       std::vector<float>(16, 1.0F))});
}

class ModelManagerTest : public ::testing::Test {
 protected:
  ModelManagerTest()
      : executor_(1), engine_({}, &executor_, BestKernels(), &metrics_) {
    options_.available_memory = [] { return std::nullopt; };
  }

  std::string Folder(const std::string& name) const {
    return folder_.File(name);
  }
  absl::Status Start() {
    manager_ = std::make_unique<ModelManager>(options_, &executor_, &engine_,
                                              &registry_, &metrics_);
    MOE_RETURN_IF_ERROR(manager_->AnnounceAll());
    return manager_->LoadAll();
  }
  // With a repository of the models `a` and `b`.
  void StartWithRepository() {
    WriteModel(Folder("a"), 1);
    WriteModel(Folder("b"), 1);
    options_.repository = folder_.path();
    MOE_ASSERT_OK(Start());
  }
  absl::Status Load(const std::string& name) {
    return Wait([&](auto done) { manager_->Load(name, std::move(done)); });
  }
  absl::Status Unload(const std::string& name) {
    return Wait([&](auto done) { manager_->Unload(name, std::move(done)); });
  }
  void LookForChanges() {
    manager_->LookForChanges();
    // What is asked for later is done later.
    EXPECT_THAT(Load("no such model"),
                StatusIs(absl::StatusCode::kNotFound, _));
  }
  std::shared_ptr<const ServedModel> Find(const std::string& name) {
    auto found = registry_.Find(name);
    return found.ok() ? *std::move(found) : nullptr;
  }

  // moe_model_loads_total
  double Loads(const std::string& result) const {
    for (const auto& family : metrics_.registry()->Collect()) {
      if (family.name != "moe_model_loads_total") continue;
      for (const auto& metric : family.metric) {
        if (metric.label.front().value == result) return metric.counter.value;
      }
    }
    return -1;
  }

  template <typename Ask>
  static absl::Status Wait(Ask ask) {
    absl::Notification notified;
    absl::Status result;
    ask([&](const absl::Status& status) {
      result = status;
      notified.Notify();
    });
    notified.WaitForNotification();
    return result;
  }

  const TempFolder folder_;
  Executor executor_;
  Metrics metrics_;
  ModelRegistry registry_;
  Engine engine_;
  ModelManagerOptions options_;
  std::unique_ptr<ModelManager> manager_;
};

auto Is(const std::string& name, State state, const std::string& reason) {
  return AllOf(Field(&ModelStatus::name, name),
               Field(&ModelStatus::state, state),
               Field(&ModelStatus::reason, HasSubstr(reason)));
}

TEST_F(ModelManagerTest, LoadsWhatItIsGiven) {
  WriteModel(Folder("m"), 1);
  options_.models = {{.name = "mine", .directory = Folder("m")}};
  options_.demo = true;
  MOE_ASSERT_OK(Start());
  EXPECT_NE(Find("mine"), nullptr);
  EXPECT_NE(Find("demo"), nullptr);
  EXPECT_THAT(manager_->List(), ElementsAre(Is("demo", State::kReady, ""),
                                            Is("mine", State::kReady, "")));
}

TEST_F(ModelManagerTest, NamesTheModelThatFailsAtTheStart) {
  options_.models = {{.name = "mine", .directory = Folder("nowhere")}};
  EXPECT_THAT(Start(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model mine: ")));
}

TEST_F(ModelManagerTest, RefusesARepositoryWithANameThatIsTaken) {
  WriteModel(Folder("a"), 1);
  options_.repository = folder_.path();
  options_.models = {{.name = "a", .directory = Folder("a")}};
  EXPECT_THAT(Start(), StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("names that no other model has")));
}

TEST_F(ModelManagerTest, NewVersionTakesThePlaceOfTheOld) {
  StartWithRepository();
  auto old = Find("a");
  const auto other = Find("b");
  WriteModel(Folder("a"), 2);
  EXPECT_EQ(Find("a"), old) << "nobody has asked for it yet";
  MOE_EXPECT_OK(Load("a"));
  const auto fresh = Find("a");
  EXPECT_NE(fresh, old);
  EXPECT_EQ(Find("b"), other);
  // Whoever uses it has it to the end.
  EXPECT_EQ(old->model->layers().size(), 1);
  const std::weak_ptr<const ServedModel> gone = old;
  old.reset();
  EXPECT_TRUE(gone.expired());
}

TEST_F(ModelManagerTest, BrokenVersionLeavesTheOldAndIsReported) {
  StartWithRepository();
  const auto old = Find("a");
  WriteBrokenModel(Folder("a"));
  EXPECT_THAT(Load("a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model a: ")));
  EXPECT_EQ(Find("a"), old);
  EXPECT_THAT(manager_->List(),
              ElementsAre(Is("a", State::kReady, "model.layers.0"),
                          Is("b", State::kReady, "")));
  WriteModel(Folder("a"), 3);
  MOE_EXPECT_OK(Load("a"));
  EXPECT_NE(Find("a"), old);
  EXPECT_THAT(manager_->List()[0].reason, IsEmpty());
}

TEST_F(ModelManagerTest, UnloadedModelsStayAwayUntilTheyAreLoaded) {
  StartWithRepository();
  MOE_EXPECT_OK(Unload("a"));
  EXPECT_EQ(Find("a"), nullptr);
  MOE_EXPECT_OK(Unload("a")) << "as asked for";
  EXPECT_THAT(manager_->List(),
              ElementsAre(Is("a", State::kUnavailable, "unloaded"),
                          Is("b", State::kReady, "")));
  WriteModel(Folder("a"), 2);
  LookForChanges();
  EXPECT_EQ(Find("a"), nullptr);
  MOE_EXPECT_OK(Load("a"));
  EXPECT_NE(Find("a"), nullptr);
  EXPECT_THAT(Unload("nobody"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"nobody\"")));
}

TEST_F(ModelManagerTest, LoadsModelsThatAreNewInTheRepositoryByName) {
  StartWithRepository();
  EXPECT_THAT(Load("c"), StatusIs(absl::StatusCode::kNotFound,
                                  HasSubstr("\"c\" in the repository")));
  WriteModel(Folder("c"), 1);
  MOE_EXPECT_OK(Load("c"));
  EXPECT_NE(Find("c"), nullptr);
  std::filesystem::create_directory(Folder("empty"));
  EXPECT_THAT(Load("empty"), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(registry_.Find("empty").status(),
              StatusIs(absl::StatusCode::kNotFound, _))
      << "announced no longer";
}

TEST_F(ModelManagerTest, NobodyWaitsWhileTheDiskIsRead) {
  bool hold = false;
  absl::Notification reading;
  absl::Notification go_on;
  options_.list_repository = [&](const std::string& repository) {
    if (std::exchange(hold, false)) {
      reading.Notify();
      // Bounded, so that a lock that is held here fails the test, not hangs it.
      EXPECT_TRUE(go_on.WaitForNotificationWithTimeout(absl::Seconds(30)));
    }
    return ListRepository(repository);
  };
  StartWithRepository();
  WriteModel(Folder("c"), 1);
  hold = true;
  absl::Notification loaded;
  manager_->Load("c", [&](const absl::Status& status) {
    MOE_EXPECT_OK(status);
    loaded.Notify();
  });
  reading.WaitForNotification();
  EXPECT_EQ(manager_->List().size(), 2U);
  absl::Notification unloaded;
  manager_->Unload("b", [&](const absl::Status& status) {
    MOE_EXPECT_OK(status);
    unloaded.Notify();
  });
  go_on.Notify();
  loaded.WaitForNotification();
  unloaded.WaitForNotification();
  EXPECT_NE(Find("c"), nullptr);
}

TEST_F(ModelManagerTest, OddFoldersAreLeftOutWithOneWarningEach) {
  std::filesystem::create_directory(Folder("lost+found"));
  std::filesystem::create_directory(Folder("empty"));
  ::testing::internal::CaptureStderr();
  StartWithRepository();
  LookForChanges();
  std::filesystem::create_directory(Folder("late"));
  LookForChanges();
  FlushLog();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(Find("a"), nullptr);
  EXPECT_NE(Find("b"), nullptr);
  EXPECT_THAT(manager_->List(), SizeIs(2));
  for (const char* name : {"lost+found", "empty", "late"}) {
    const std::string warning =
        absl::StrCat("--model_repository: left out \"", name, "\": want ");
    const size_t found = log.find(warning);
    EXPECT_NE(found, std::string::npos) << name << " is missing in " << log;
    EXPECT_EQ(log.find(warning, found + 1), std::string::npos) << log;
  }
}

TEST_F(ModelManagerTest, FolderThatBecomesAModelIsLoadedAndTheReverseIsNot) {
  std::filesystem::create_directory(Folder("c"));
  StartWithRepository();
  WriteModel(Folder("c"), 1);
  LookForChanges();
  EXPECT_NE(Find("c"), nullptr);
  std::filesystem::remove(Folder("b") + "/config.json");
  LookForChanges();
  EXPECT_NE(Find("b"), nullptr) << "may be in the midst of being copied";
}

TEST_F(ModelManagerTest, NamesThatAreNoNamesLeadNowhere) {
  StartWithRepository();
  for (const char* name : {"", ".", "..", "../a", "a/../b", "/etc", "a\n"}) {
    EXPECT_THAT(Load(name), StatusIs(absl::StatusCode::kNotFound, _)) << name;
  }
}

TEST_F(ModelManagerTest, LooksForWhatHasChangedAppearedOrGone) {
  StartWithRepository();
  const auto old_a = Find("a");
  const auto old_b = Find("b");
  LookForChanges();
  EXPECT_EQ(Find("a"), old_a);
  WriteModel(Folder("a"), 2);
  WriteModel(Folder("c"), 1);
  LookForChanges();
  EXPECT_NE(Find("a"), old_a);
  EXPECT_NE(Find("a"), nullptr);
  EXPECT_EQ(Find("b"), old_b);
  EXPECT_NE(Find("c"), nullptr);
  std::filesystem::remove_all(Folder("b"));
  LookForChanges();
  EXPECT_EQ(Find("b"), nullptr);
  EXPECT_THAT(manager_->List(), ElementsAre(Is("a", State::kReady, ""),
                                            Is("c", State::kReady, "")));
}

TEST_F(ModelManagerTest, RepositoryThatVanishesChangesNothing) {
  StartWithRepository();
  const auto old = Find("a");
  std::filesystem::remove_all(Folder("a"));
  std::filesystem::remove_all(Folder("b"));
  LookForChanges();
  EXPECT_EQ(Find("a"), old);
}

TEST_F(ModelManagerTest, TriesABrokenVersionOnce) {
  StartWithRepository();
  WriteBrokenModel(Folder("a"));
  for (int i = 0; i < 3; ++i) LookForChanges();
  EXPECT_EQ(Loads("failed"), 1);
}

TEST_F(ModelManagerTest, PollsForChanges) {
  options_.poll = absl::Milliseconds(1);
  StartWithRepository();
  const auto old = Find("a");
  WriteModel(Folder("a"), 2);
  // Seen twice, it is loaded; the test's time limit bounds the wait.
  while (Find("a") == old) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_NE(Find("a"), nullptr);
}

TEST_F(ModelManagerTest, RefusesWhatDoesNotFitIntoMemoryBeforeLoadingIt) {
  int64_t available = int64_t{1} << 40;
  options_.available_memory = [&] { return available; };
  StartWithRepository();
  const auto old = Find("a");
  // 2 experts of 3 matrices of 32 floats are more, and the gate comes on top.
  available = 2 * 3 * 32 * 4;
  WriteModel(Folder("a"), 2);
  EXPECT_THAT(Load("a"), StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("model a: memory: want")));
  EXPECT_EQ(Find("a"), old);
  available = int64_t{1} << 20;
  MOE_EXPECT_OK(Load("a"));
}

TEST_F(ModelManagerTest, ModelThatAsksForEverythingIsRefusedAndOthersGoOn) {
  StartWithRepository();
  const auto served = Find("a");
  WriteModel(Folder("huge"), 1);
  const std::string config(kConfig);
  for (const auto& [from, to] :
       {std::make_pair("\"num_hidden_layers\": 1",
                       "\"num_hidden_layers\": 1000000000000"),
        std::make_pair("\"num_experts\": 2", "\"num_experts\": 1000000000"),
        std::make_pair("\"hidden_size\": 8",
                       "\"hidden_size\": 4611686018427387904"),
        std::make_pair("\"intermediate_size\": 4",
                       "\"intermediate_size\": 4611686018427387904")}) {
    std::ofstream(Folder("huge/config.json"))
        << absl::StrReplaceAll(config, {{from, to}});
    EXPECT_THAT(Load("huge"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want")))
        << to;
  }
  EXPECT_EQ(Find("a"), served);
  EXPECT_EQ(Find("huge"), nullptr);
  std::ofstream(Folder("huge/config.json")) << config;
  MOE_EXPECT_OK(Load("huge"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Sanitizers need far more address space than what is left here.
TEST_F(ModelManagerTest, LoadThatMemoryIsTooShortForEndsAlone) {
  StartWithRepository();
  const auto served = Find("a");
  // 2 experts of 3 x 64 MiB of float32, and no memory for their packed form.
  constexpr int64_t kWide = 4096;
  std::filesystem::create_directories(Folder("big"));
  std::ofstream(Folder("big/config.json")) << absl::StrReplaceAll(
      kConfig, {{"\"hidden_size\": 8", "\"hidden_size\": 4096"},
                {"\"intermediate_size\": 4", "\"intermediate_size\": 4096"}});
  const auto tensor = [&](const std::string& name, int64_t rows) {
    return FloatTensor(absl::StrCat("model.layers.0.mlp.", name, ".weight"),
                       DType::kF32, {rows, kWide},
                       std::vector<float>(static_cast<size_t>(rows * kWide)));
  };
  std::vector<TestTensor> tensors = {tensor("gate", 2)};
  for (const char* expert : {"experts.0.", "experts.1."}) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      tensors.push_back(tensor(absl::StrCat(expert, name), kWide));
    }
  }
  Replace(Folder("big"), "model.safetensors", tensors);
  tensors.clear();

  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit tight = before;
  // The file's mapping and a little more.
  tight.rlim_cur =
      static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (rlim_t{500} << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  const absl::Status status = Load("big");
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("memory: not enough to load")));
  EXPECT_EQ(Find("a"), served);
  MOE_EXPECT_OK(Load("big"));
}
#endif

TEST_F(ModelManagerTest, RefusesNamesOfOtherModelsLayers) {
  StartWithRepository();
  WriteModel(Folder("a.layers.0"), 1);
  EXPECT_THAT(Load("a.layers.0"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got \"a.layers.0\" beside \"a\"")));
  WriteModel(Folder("a.layers.x"), 1);
  MOE_EXPECT_OK(Load("a.layers.x"));
  WriteModel(Folder("c.layers.7"), 1);
  MOE_EXPECT_OK(Load("c.layers.7"));
  WriteModel(Folder("c"), 1);
  EXPECT_THAT(Load("c"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got \"c\" beside \"c.layers.7\"")));
}

TEST_F(ModelManagerTest, WarnsOfRoutersThatAreNoNumbers) {
  WriteModel(Folder("m"), std::numeric_limits<float>::quiet_NaN());
  options_.models = {{.name = "m", .directory = Folder("m")}};
  testing::internal::CaptureStderr();
  MOE_EXPECT_OK(Start());
  FlushLog();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("model m: tensor \"model.layers.0.mlp.gate.weight\": "
                        "want finite numbers, got NaN or Inf"));
}

TEST_F(ModelManagerTest, DrainAnswersThoseWhoWait) {
  absl::Notification loading;
  absl::Notification go_on;
  bool hold = false;
  options_.available_memory = [&]() -> std::optional<int64_t> {
    if (!hold) return std::nullopt;
    loading.Notify();
    go_on.WaitForNotification();
    return std::nullopt;
  };
  StartWithRepository();
  hold = true;
  WriteModel(Folder("a"), 2);
  absl::Notification first_told;
  absl::Notification second_told;
  absl::Status first;
  absl::Status second;
  manager_->Load("a", [&](const absl::Status& status) {
    first = status;
    first_told.Notify();
  });
  loading.WaitForNotification();
  manager_->Unload("b", [&](const absl::Status& status) {
    second = status;
    second_told.Notify();
  });
  manager_->BeginDrain();
  first_told.WaitForNotification();
  second_told.WaitForNotification();
  const auto unavailable =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining"));
  EXPECT_THAT(first, unavailable);
  EXPECT_THAT(second, unavailable);
  EXPECT_THAT(Load("a"), unavailable);
  EXPECT_NE(Find("b"), nullptr);
  go_on.Notify();
  manager_.reset();
}

// A request that has been answered, and takes all memory until it is released.
class Hoarder final : public RequestCodec, public RequestObserver {
 public:
  Hoarder(const ServedLayer& layer, int64_t bytes)
      : request_({.layer = layer,
                  .tokens = 1,
                  .given_k = 0,
                  .parts = {ResponsePart::kOutput}},
                 SteadyTime::max(), bytes, this, this) {}

  EngineRequest& request() { return request_; }
  void Wait() const { finished_.WaitForNotification(); }

  void Decode(int64_t /*first*/, Matrix hidden_states) const override {
    std::fill_n(hidden_states.data(),
                hidden_states.rows() * hidden_states.cols(), 1.0F);
  }
  void DecodeRouting(int64_t, MatrixView<int32_t>, Matrix) const override {}
  void LayOut() override {}
  void Encode(int64_t, const EngineResult&) override {}
  bool Cancelled() const override { return false; }
  void OnFinished(const absl::Status& status) override {
    MOE_EXPECT_OK(status);
    finished_.Notify();
  }

 private:
  EngineRequest request_;
  absl::Notification finished_;
};

TEST_F(ModelManagerTest, DrainEndsTheWaitForAFullEngine) {
  StartWithRepository();
  MOE_ASSERT_OK_AND_ASSIGN(const ServedLayer layer,
                           registry_.FindLayer("b", 0));
  Hoarder hoarder(layer, engine_.options().max_queue_bytes + 1);
  MOE_ASSERT_OK(engine_.Submit(&hoarder.request()));
  hoarder.Wait();
  // Warming up the new version finds no room, again and again.
  WriteModel(Folder("a"), 2);
  absl::Notification told;
  manager_->Load("a", [&](const absl::Status& status) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 HasSubstr("draining")));
    told.Notify();
  });
  manager_->BeginDrain();
  told.WaitForNotification();
  manager_.reset();  // waits for the load to give up
  engine_.Release(hoarder.request().bytes());
}

TEST_F(ModelManagerTest, RefusesMoreWorkThanMayWait) {
  absl::Notification loading;
  absl::Notification go_on;
  bool hold = false;
  options_.available_memory = [&]() -> std::optional<int64_t> {
    if (std::exchange(hold, false)) {
      loading.Notify();
      go_on.WaitForNotification();
    }
    return std::nullopt;
  };
  StartWithRepository();
  hold = true;
  absl::Mutex mutex;
  std::vector<absl::StatusCode> codes;
  const auto unload = [&] {
    manager_->Unload("no such model", [&](const absl::Status& status) {
      absl::MutexLock lock(&mutex);
      codes.push_back(status.code());
    });
  };
  manager_->Load("a", [](const absl::Status&) {});
  loading.WaitForNotification();
  for (size_t i = 0; i < ModelManager::kMaxJobs; ++i) unload();
  EXPECT_THAT(Load("b"), StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("at most 64")));
  go_on.Notify();
  const auto all_done = [&] { return codes.size() == ModelManager::kMaxJobs; };
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&all_done));
    EXPECT_THAT(codes, ::testing::Each(absl::StatusCode::kNotFound));
  }
  MOE_EXPECT_OK(Load("b"));
}

TEST_F(ModelManagerTest, CountsLoadsByTheirResult) {
  StartWithRepository();
  WriteBrokenModel(Folder("a"));
  EXPECT_FALSE(Load("a").ok());
  EXPECT_EQ(Loads("ok"), 2);
  EXPECT_EQ(Loads("failed"), 1);
}

}  // namespace
}  // namespace moe
