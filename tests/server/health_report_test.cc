#include "server/health_report.h"

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moe {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Remembers what it was told last of each name.
class FakeHealth final : public grpc::HealthCheckServiceInterface {
 public:
  void SetServingStatus(const std::string& name, bool serving) override {
    if (before) before(name, serving);
    absl::MutexLock lock(&mutex_);
    said_[name] = serving;
  }
  void SetServingStatus(bool /*serving*/) override {}

  std::map<std::string, bool> said() const {
    absl::MutexLock lock(&mutex_);
    return said_;
  }
  std::function<void(const std::string& name, bool serving)> before;

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, bool> said_ ABSL_GUARDED_BY(mutex_);
};

TEST(HealthReportTest, ModelsServeIfTheServerDoesAndTheyCan) {
  FakeHealth health;
  HealthReport report({"", "service"}, &health);
  EXPECT_THAT(health.said(),
              ElementsAre(Pair("", false), Pair("service", false)));
  report.SetModels([] {
    return HealthReport::Models{{"a", true}, {"b", false}};
  });
  EXPECT_FALSE(health.said()["a"]) << "the server does not serve yet";
  report.SetServing(true);
  EXPECT_THAT(health.said(),
              ElementsAre(Pair("", true), Pair("a", true), Pair("b", false),
                          Pair("service", true)));
  report.SetModels([] { return HealthReport::Models{{"b", true}}; });
  EXPECT_FALSE(health.said()["a"]) << "it is gone";
  EXPECT_TRUE(health.said()["b"]);
  report.SetServing(false);
  report.SetModels([] { return HealthReport::Models{{"b", true}}; });
  EXPECT_THAT(health.said(),
              ElementsAre(Pair("", false), Pair("a", false), Pair("b", false),
                          Pair("service", false)));
}

TEST(HealthReportTest, NothingServesAgainAfterTheEndHoweverLateItIsReported) {
  FakeHealth health;
  HealthReport report({""}, &health);
  report.SetServing(true);
  // The server ends while a model is being reported: between the look at the
  // server and the word to the service.
  absl::Notification begun;
  absl::Notification ended;
  std::thread end([&] {
    begun.WaitForNotification();
    report.SetServing(false);
    ended.Notify();
  });
  health.before = [&](const std::string& name, bool serving) {
    if (name != "model" || !serving || begun.HasBeenNotified()) return;
    begun.Notify();
    // Long enough for an end that does not wait for its turn.
    ended.WaitForNotificationWithTimeout(absl::Milliseconds(200));
  };
  report.SetModels([] { return HealthReport::Models{{"model", true}}; });
  end.join();
  EXPECT_THAT(health.said(),
              ElementsAre(Pair("", false), Pair("model", false)));
}

}  // namespace
}  // namespace moe
