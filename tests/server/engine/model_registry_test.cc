#include "server/engine/model_registry.h"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kNotFound = absl::StatusCode::kNotFound;

// A model of layers with these indices, which are never run.
std::shared_ptr<const ServedModel> MakeServed(const std::string& name,
                                              const std::vector<int>& indices) {
  std::vector<ModelLayer> layers;
  for (const int index : indices) layers.push_back({index, nullptr});
  auto served = std::make_shared<ServedModel>();
  served->name = name;
  served->weight_format = "f32";
  served->model =
      std::make_unique<Model>(ModelSpec(), std::move(layers), WeightsBytes());
  served->layer_metrics.resize(indices.size());
  return served;
}

TEST(ModelRegistryTest, FindsWhatWasPublished) {
  ModelRegistry registry;
  const auto served = MakeServed("olmoe", {0});
  registry.Publish(served);
  MOE_ASSERT_OK_AND_ASSIGN(const auto found, registry.Find("olmoe"));
  EXPECT_EQ(found, served);
}

TEST(ModelRegistryTest, UnknownModelsAreNotFoundAndNamed) {
  ModelRegistry registry;
  registry.Publish(MakeServed("olmoe", {0}));
  for (const std::string name : {"", "olmo", "Olmoe", "olmoe2"}) {
    EXPECT_THAT(
        registry.Find(name),
        StatusIs(kNotFound, HasSubstr(absl::StrCat("model: no model named \"",
                                                   name, "\""))));
    EXPECT_THAT(registry.FindLayer(name, 0),
                StatusIs(kNotFound, HasSubstr("model: ")));
  }
}

TEST(ModelRegistryTest, CutsLongNamesInMessages) {
  ModelRegistry registry;
  const absl::Status status = registry.Find(std::string(100000, 'x')).status();
  EXPECT_EQ(status.code(), kNotFound);
  EXPECT_LT(status.message().size(), 200);
}

TEST(ModelRegistryTest, AnnouncedModelsAreStillLoading) {
  ModelRegistry registry;
  registry.Announce("olmoe");
  const auto loading = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("\"olmoe\" is still loading"));
  EXPECT_THAT(registry.Find("olmoe"), loading);
  EXPECT_THAT(registry.FindLayer("olmoe", 0), loading);
  EXPECT_THAT(registry.List(), IsEmpty());
  registry.Publish(MakeServed("olmoe", {0}));
  MOE_EXPECT_OK(registry.Find("olmoe"));
}

TEST(ModelRegistryTest, AnnouncingAModelThatThereIsChangesNothing) {
  ModelRegistry registry;
  registry.Publish(MakeServed("olmoe", {0}));
  registry.Announce("olmoe");
  MOE_EXPECT_OK(registry.Find("olmoe"));
}

TEST(ModelRegistryTest, WithdrawnModelsLiveOnWithTheirUsers) {
  ModelRegistry registry;
  registry.Publish(MakeServed("olmoe", {0}));
  MOE_ASSERT_OK_AND_ASSIGN(const ServedLayer used,
                           registry.FindLayer("olmoe", 0));
  registry.Withdraw("olmoe");
  registry.Withdraw("olmoe");
  EXPECT_THAT(registry.Find("olmoe"), StatusIs(kNotFound, HasSubstr("olmoe")));
  EXPECT_EQ(used.served.use_count(), 1);
  EXPECT_EQ(used.layer, &used.served->model->layers()[0]);
}

TEST(ModelRegistryTest, FindsLayersByTheirIndexInTheCheckpoint) {
  ModelRegistry registry;
  const auto served = MakeServed("olmoe", {1, 3, 8});
  registry.Publish(served);
  MOE_ASSERT_OK_AND_ASSIGN(const ServedLayer found,
                           registry.FindLayer("olmoe", 3));
  EXPECT_EQ(found.served, served);
  EXPECT_EQ(found.layer, &served->model->layers()[1]);
  EXPECT_EQ(found.metrics, served->layer_metrics[1].get());
}

TEST(ModelRegistryTest, UnknownLayersAreNotFoundAndThoseThereAreAreNamed) {
  ModelRegistry registry;
  registry.Publish(MakeServed("few", {1, 3, 8}));
  registry.Publish(MakeServed("none", {}));
  std::vector<int> many;
  for (int i = 3; i <= 60; ++i) many.push_back(i);
  registry.Publish(MakeServed("many", many));
  for (const int32_t layer : {0, 2, -1, 9, 1 << 30}) {
    EXPECT_THAT(
        registry.FindLayer("few", layer),
        StatusIs(kNotFound, HasSubstr(absl::StrCat(
                                "layer: want one of 1, 3, 8; got ", layer))));
  }
  EXPECT_THAT(registry.FindLayer("none", 0),
              StatusIs(kNotFound, HasSubstr("want one of none; got 0")));
  EXPECT_THAT(
      registry.FindLayer("many", 0),
      StatusIs(kNotFound, HasSubstr("want one of 3 to 60 (58 layers); got 0")));
}

TEST(ModelRegistryTest, ListsByNameWhatIsLoaded) {
  ModelRegistry registry;
  registry.Publish(MakeServed("zeta", {0}));
  registry.Announce("middle");
  registry.Publish(MakeServed("alpha", {0}));
  std::vector<std::string> names;
  for (const auto& served : registry.List()) names.push_back(served->name);
  EXPECT_THAT(names, ElementsAre("alpha", "zeta"));
}

TEST(ModelRegistryTest, AFormerVersionLivesAsLongAsItIsUsed) {
  ModelRegistry registry;
  std::weak_ptr<const ServedModel> former;
  {
    const auto served = MakeServed("olmoe", {0});
    former = served;
    registry.Publish(served);
  }
  {
    MOE_ASSERT_OK_AND_ASSIGN(const ServedLayer in_use,
                             registry.FindLayer("olmoe", 0));
    const auto next = MakeServed("olmoe", {0, 1});
    registry.Publish(next);
    MOE_ASSERT_OK_AND_ASSIGN(const auto found, registry.Find("olmoe"));
    EXPECT_EQ(found, next);
    EXPECT_FALSE(former.expired());
    EXPECT_EQ(in_use.layer->index, 0);
  }
  EXPECT_TRUE(former.expired());
}

TEST(ModelRegistryTest, ReadersSeeAWholeVersionWhileModelsAreReplaced) {
  ModelRegistry registry;
  registry.Publish(MakeServed("olmoe", {0}));
  std::jthread writer([&registry](const std::stop_token& stop) {
    for (int i = 1; !stop.stop_requested(); i = i % 5 + 1) {
      registry.Publish(MakeServed("olmoe", std::vector<int>(i, 0)));
    }
  });
  for (int i = 0; i < 2000; ++i) {
    MOE_ASSERT_OK_AND_ASSIGN(const ServedLayer found,
                             registry.FindLayer("olmoe", 0));
    ASSERT_EQ(found.served->model->layers().size(),
              found.served->layer_metrics.size());
    ASSERT_EQ(found.metrics, found.served->layer_metrics.front().get());
  }
}

}  // namespace
}  // namespace moe
