#include "server/common/index_set.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
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

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseIndexListTest, ExpandsRangesAscendingAndDistinct) {
  struct Row {
    const char* text;
    std::vector<int> want;
  };
  for (const Row& row : {Row{"", {}},
                         {"0", {0}},
                         {"7,0-3", {0, 1, 2, 3, 7}},
                         {"2-4,3-5,4", {2, 3, 4, 5}},
                         {"5-5", {5}},
                         {"1,,2,", {1, 2}},
                         {"100000", {100000}}}) {
    SCOPED_TRACE(row.text);
    MOE_ASSERT_OK_AND_ASSIGN(const std::vector<int> got,
                             ParseIndexList("--layers", row.text));
    EXPECT_EQ(got, row.want);
  }
}

TEST(ParseIndexListTest, RefusesWhatIsNoListNamingTheFlag) {
  for (const std::string text :
       {"a", "1-", "-1", "3-1", "1-2-3", "1.5", "0x3", "100001",
        "99999999999999999999", "0-100001"}) {
    EXPECT_THAT(
        ParseIndexList("--layers", text),
        StatusIs(kInvalid, AllOf(HasSubstr("--layers: want numbers and ranges"),
                                 HasSubstr(absl::StrCat("\"", text, "\"")))));
  }
}

IndexSet Set(absl::string_view text) {
  return IndexSet::Parse("set", text).value();
}

TEST(IndexSetTest, TakesNoMoreMemoryThanItsText) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) absl::StrAppend(&text, "0-100000,");
  EXPECT_THAT(Set(text).ranges(), ElementsAre(IndexSet::Range{0, 100'000}));
}

TEST(IndexSetTest, ErrorsAreOneShortLine) {
  const auto set =
      IndexSet::Parse("f", absl::StrCat("1\n2", std::string(9999, 'x')));
  EXPECT_THAT(set, StatusIs(kInvalid, HasSubstr("\"1\\n2")));
  EXPECT_LT(set.status().message().size(), 300);
}

TEST(IndexSetTest, WritesTheShortestText) {
  for (const std::string text : {"", "0", "0-3,7", "1-2,4,6-9"}) {
    EXPECT_EQ(Set(text).ToString(), text);
  }
  EXPECT_EQ(Set("3,2,1,5").ToString(), "1-3,5");
}

// Against the standard library's sets.
TEST(IndexSetTest, ComputesAsSetsDo) {
  constexpr int kEnd = 24;
  std::mt19937 random(7);
  std::uniform_int_distribution<int> index(0, kEnd - 1);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    IndexSet sets[2];
    std::set<int> want[2];
    for (int s = 0; s < 2; ++s) {
      for (int ranges = index(random) % 5; ranges > 0; --ranges) {
        const int first = index(random);
        const int last = std::min(kEnd - 1, first + index(random) % 6);
        sets[s].Add({first, last});
        for (int i = first; i <= last; ++i) want[s].insert(i);
      }
      EXPECT_EQ(sets[s].Values(),
                std::vector<int>(want[s].begin(), want[s].end()));
      EXPECT_EQ(Set(sets[s].ToString()).Values(), sets[s].Values());
      EXPECT_EQ(sets[s].empty(), want[s].empty());
    }
    const IndexSet without = sets[0].Without(sets[1]);
    const IndexSet below = sets[0].Below(10);
    IndexSet both = sets[0];
    both.AddAll(sets[1]);
    for (int i = -1; i <= kEnd; ++i) {
      SCOPED_TRACE(i);
      const bool in_first = want[0].count(i) > 0;
      const bool in_second = want[1].count(i) > 0;
      EXPECT_EQ(sets[0].Contains(i), in_first);
      EXPECT_EQ(without.Contains(i), in_first && !in_second);
      EXPECT_EQ(below.Contains(i), in_first && i < 10);
      EXPECT_EQ(both.Contains(i), in_first || in_second);
    }
  }
}

TEST(IndexSetTest, UpToLeavesTheEndOut) {
  EXPECT_EQ(IndexSet::UpTo(4).ToString(), "0-3");
  EXPECT_TRUE(IndexSet::UpTo(0).empty());
}

}  // namespace
}  // namespace moe
