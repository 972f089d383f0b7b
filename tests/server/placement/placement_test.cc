#include "server/placement/placement.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// 8 experts; 6 and 7 of layer 3 are hot and on two shards.
constexpr char kTwoShards[] = R"({
  "shards": [
    {"name": "low", "targets": ["dns:///low:50051"],
     "experts": [{"experts": "0-3"},
                 {"model": "m", "layers": "3", "experts": "6-7"}]},
    {"name": "high", "targets": ["ipv4:10.0.0.1:50051", "ipv4:10.0.0.2:50051"],
     "experts": [{"experts": "4-7"}]}
  ]
})";

Placement Read(absl::string_view json) {
  return Placement::Parse(json).value();
}

TEST(PlacementTest, ReadsNamesAndTargets) {
  const Placement placement = Read(kTwoShards);
  ASSERT_THAT(placement.shards(), SizeIs(2));
  EXPECT_EQ(placement.shards()[0].name, "low");
  EXPECT_THAT(placement.shards()[0].targets, ElementsAre("dns:///low:50051"));
  EXPECT_EQ(placement.shards()[1].name, "high");
  EXPECT_THAT(placement.shards()[1].targets,
              ElementsAre("ipv4:10.0.0.1:50051", "ipv4:10.0.0.2:50051"));
  EXPECT_EQ(placement.Find("high"), 1);
  EXPECT_EQ(placement.Find("other"), std::nullopt);
}

TEST(PlacementTest, TakesEverySchemeOfATarget) {
  for (const char* target :
       {"dns:///a:1", "dns:a:1", "dns://1.1.1.1/a", "ipv4:1.2.3.4:5,1.2.3.5:5",
        "ipv6:[::1]:5", "unix:a.sock", "unix:///a.sock", "unix-abstract:a",
        "xds:///a"}) {
    MOE_EXPECT_OK(Placement::Parse(
        absl::StrReplaceAll(kTwoShards, {{"dns:///low:50051", target}})));
  }
}

TEST(PlacementTest, TellsWhereExpertsAre) {
  const Placement placement = Read(kTwoShards);
  EXPECT_THAT(placement.ShardsOf("m", 3, 0), ElementsAre(0));
  EXPECT_THAT(placement.ShardsOf("m", 3, 5), ElementsAre(1));
  EXPECT_THAT(placement.ShardsOf("m", 3, 6), ElementsAre(0, 1));
  EXPECT_THAT(placement.ShardsOf("m", 2, 6), ElementsAre(1));
  EXPECT_THAT(placement.ShardsOf("n", 3, 6), ElementsAre(1));
  EXPECT_THAT(placement.ShardsOf("m", 3, 8), IsEmpty());

  EXPECT_THAT(placement.ExpertsOf(0, "m", 3, 8), ElementsAre(0, 1, 2, 3, 6, 7));
  EXPECT_THAT(placement.ExpertsOf(0, "m", 2, 8), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(placement.ExpertsOf(1, "m", 3, 8), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(placement.ExpertsOf(1, "m", 3, 6), ElementsAre(4, 5));
}

TEST(PlacementTest, NothingSaidMeansAll) {
  const Placement placement =
      Read(R"({"shards": [{"name": "a", "targets": ["unix:a"],
                           "experts": [{}]}]})");
  EXPECT_THAT(placement.ExpertsOf(0, "any", 17, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(placement.ShardsOf("any", 17, 2), ElementsAre(0));
  MOE_EXPECT_OK(placement.CheckCover("any", 17, 3, {}));
}

TEST(PlacementTest, AShardMayHoldNothingOfALayer) {
  const Placement placement = Read(R"({"shards": [
      {"name": "a", "targets": ["unix:a"], "experts": [{"layers": "0"}]},
      {"name": "b", "targets": ["unix:b"], "experts": [{"layers": "1"}]}]})");
  EXPECT_THAT(placement.ExpertsOf(0, "m", 1, 4), IsEmpty());
  EXPECT_THAT(placement.ShardsOf("m", 1, 0), ElementsAre(1));
  MOE_EXPECT_OK(placement.CheckCover("m", 1, 4, {}));
  EXPECT_THAT(placement.CheckCover("m", 2, 4, {}),
              StatusIs(kInvalid, HasSubstr("got none for 0-3 of 4")));
}

TEST(PlacementTest, CoverIsShardsAndLocalExperts) {
  const Placement placement = Read(R"({"shards": [
      {"name": "a", "targets": ["unix:a"], "experts": [{"experts": "2,5-6"}]},
      {"name": "b", "targets": ["unix:b"], "experts": [{"experts": "6-7"}]}]})");
  EXPECT_THAT(
      placement.CheckCover("m", 4, 10, {}),
      StatusIs(kInvalid,
               "model \"m\", layer 4: want every expert on a shard, got none "
               "for 0-1,3-4,8-9 of 10"));
  EXPECT_THAT(placement.CheckCover("m", 4, 10, {0, 1, 9, 8}),
              StatusIs(kInvalid, HasSubstr("got none for 3-4 of 10")));
  MOE_EXPECT_OK(placement.CheckCover("m", 4, 10, {0, 1, 2, 3, 4, 8, 9}));
}

TEST(PlacementTest, NamesExpertsThatTheLayerHasNot) {
  EXPECT_THAT(Read(kTwoShards).CheckCover("m", 3, 7, {}),
              StatusIs(kInvalid,
                       "model \"m\", layer 3: want experts below 7, "
                       "got 7 on shard low"));
  EXPECT_THAT(Read(kTwoShards).CheckCover("m", 2, 6, {}),
              StatusIs(kInvalid, HasSubstr("got 6-7 on shard high")));
  for (const int32_t expert : {-1, 8}) {
    EXPECT_THAT(Read(kTwoShards).CheckCover("m", 3, 8, {0, expert}),
                StatusIs(kInvalid, HasSubstr(absl::StrCat(
                                       "got ", expert, " in this process"))));
  }
}

TEST(PlacementTest, ShowsTheFirstOfManyMissingExperts) {
  std::string odd = "1";
  for (int i = 3; i < 2000; i += 2) absl::StrAppend(&odd, ",", i);
  const Placement placement =
      Read(absl::StrCat(R"({"shards": [{"name": "a", "targets": ["unix:a"],
                        "experts": [{"experts": ")",
                        odd, "\"}]}]}"));
  EXPECT_THAT(
      placement.CheckCover("m", 0, 2000, {}),
      StatusIs(kInvalid, HasSubstr("got none for 0,2,4,6,8,10,12,14,... of")));
}

struct BadCase {
  const char* name;
  const char* from;  // of kTwoShards
  const char* to;
  const char* message;
};

class PlacementErrorTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(PlacementErrorTest, NamesThePlace) {
  const std::string json =
      absl::StrReplaceAll(kTwoShards, {{GetParam().from, GetParam().to}});
  ASSERT_NE(json, kTwoShards);
  EXPECT_THAT(Placement::Parse(json),
              StatusIs(kInvalid, AllOf(StartsWith("placement: "),
                                       HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    Files, PlacementErrorTest,
    ::testing::Values(
        BadCase{"Json", "]\n", "\n", "want the JSON of a moe.v1.Placement"},
        BadCase{"UnknownField", "\"targets\"", "\"target\"", "target"},
        BadCase{"WrongType", "\"4-7\"", "[4, 7]", "want the JSON"},
        BadCase{"NoName", "\"low\"", "\"\"",
                "shards[0].name: want 1 to 64 of letters, digits"},
        BadCase{"NameWithSpace", "\"high\"", "\"h g\"",
                "shards[1].name: want 1 to 64 of letters, digits, '_', '.' and "
                "'-', got \"h g\""},
        BadCase{"LongName", "\"high\"",
                "\"12345678901234567890123456789012345678901234567890123456789"
                "012345\"",
                "shards[1].name"},
        BadCase{"NameTwice", "\"high\"", "\"low\"",
                "shards[1].name: want distinct ones, got \"low\" twice"},
        BadCase{"NoTarget", "[\"dns:///low:50051\"]", "[]",
                "shards[0] (low).targets: want one, got none"},
        BadCase{"TargetWithoutScheme", "dns:///low:50051", "low:50051",
                "shards[0] (low).targets[0]: want a gRPC target as in "
                "dns:///HOST:PORT, ipv4:ADDRESS:PORT or unix:PATH, got "
                "\"low:50051\""},
        BadCase{"OtherScheme", "dns:///low:50051", "http://low",
                "(low).targets[0]"},
        BadCase{"NothingAfterScheme", "dns:///low:50051", "dns:///",
                "(low).targets[0]"},
        BadCase{"SpaceInTarget", "dns:///low:50051", "dns:///low: 1",
                "(low).targets[0]"},
        BadCase{"TargetTwice", "10.0.0.2", "10.0.0.1",
                "shards[1] (high).targets[1]: want distinct ones, got "
                "\"ipv4:10.0.0.1:50051\" twice"},
        BadCase{"NoExperts", "[{\"experts\": \"4-7\"}]", "[]",
                "shards[1] (high).experts: want one, got none"},
        BadCase{"BadExperts", "\"6-7\"", "\"7-6\"",
                "shards[0] (low).experts[1].experts: want numbers and ranges "
                "as in 0-3,7; got \"7-6\""},
        BadCase{"NoNumbers", "\"4-7\"", "\",\"",
                "shards[1] (high).experts[0].experts: want numbers and ranges"},
        BadCase{"BadLayers", "\"3\"", "\"three\"",
                "shards[0] (low).experts[1].layers: want numbers and ranges "
                "as in 0-3,7; got \"three\""}),
    [](const auto& row) { return row.param.name; });

TEST(PlacementTest, RefusesAFileWithoutShards) {
  for (const char* json : {"{}", R"({"shards": []})"}) {
    EXPECT_THAT(Placement::Parse(json),
                StatusIs(kInvalid, "placement: shards: want one, got none"));
  }
  for (const char* json : {"", "[]", "shards", "{} {}", "\xff"}) {
    SCOPED_TRACE(json);
    EXPECT_FALSE(Placement::Parse(json).ok());
  }
}

TEST(PlacementTest, ErrorsAreOneLine) {
  for (const char* json : {"{\n\n\"shards\": [\n 1 2 \n]\n}", "{\"a\\nb\": 1}",
                           "{\"shards\": [{\"name\": \"a\\nb\"}]}"}) {
    const auto placement = Placement::Parse(json);
    ASSERT_FALSE(placement.ok());
    EXPECT_THAT(std::string(placement.status().message()),
                Not(HasSubstr("\n")));
  }
}

TEST(PlacementTest, ReadsFiles) {
  TempFolder folder;
  MOE_ASSERT_OK_AND_ASSIGN(
      const Placement placement,
      Placement::ReadFile(folder.Write("good.json", kTwoShards)));
  EXPECT_THAT(placement.shards(), SizeIs(2));
  EXPECT_THAT(
      Placement::ReadFile(folder.File("none.json")),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("--shards: can't read")));
  EXPECT_THAT(
      Placement::ReadFile(folder.Write("bad.json", "{}")),
      StatusIs(kInvalid,
               AllOf(StartsWith("--shards: "), HasSubstr("bad.json"),
                     HasSubstr("placement: shards: want one, got none"))));
}

// What deploy/ ships.
TEST(PlacementTest, ReadsTheShippedFiles) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const Placement demo,
      Placement::ReadFile(MOE_SOURCE_DIR "/deploy/placement-demo.json"));
  MOE_EXPECT_OK(demo.CheckCover("demo", 0, 16, {}));
  MOE_ASSERT_OK_AND_ASSIGN(
      const Placement kubernetes,
      Placement::ReadFile(MOE_SOURCE_DIR "/deploy/kubernetes/overlays/sharded/"
                                         "placement.json"));
  MOE_EXPECT_OK(kubernetes.CheckCover("m", 0, 64, {}));
}

}  // namespace
}  // namespace moe
