#include "server/common/index_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

bool StartsBefore(const IndexSet::Range& a, const IndexSet::Range& b) {
  return a.first < b.first;
}

// Sorts, and joins what overlaps or touches.
void Normalise(std::vector<IndexSet::Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), StartsBefore);
  size_t count = 0;
  for (const IndexSet::Range range : ranges) {
    if (count > 0 && range.first <= ranges[count - 1].last + 1) {
      ranges[count - 1].last = std::max(ranges[count - 1].last, range.last);
    } else {
      ranges[count++] = range;
    }
  }
  ranges.resize(count);
}

}  // namespace

IndexSet IndexSet::UpTo(int count) {
  IndexSet set;
  if (count > 0) set.Add({0, count - 1});
  return set;
}

absl::StatusOr<IndexSet> IndexSet::Parse(absl::string_view field,
                                         absl::string_view text) {
  IndexSet set;
  for (const absl::string_view part :
       absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    Range range = {};
    const bool single = part.find('-') == absl::string_view::npos;
    if (!absl::SimpleAtoi(ends.first, &range.first) ||
        !absl::SimpleAtoi(single ? ends.first : ends.second, &range.last) ||
        range.first < 0 || range.last < range.first || range.last > kMaxIndex) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": want numbers and ranges as in 0-3,7; got ", Quote(text)));
    }
    set.ranges_.push_back(range);
  }
  Normalise(set.ranges_);
  return set;
}

void IndexSet::Add(Range range) {
  MOE_CHECK(0 <= range.first && range.first <= range.last &&
            range.last <= kMaxIndex);
  ranges_.push_back(range);
  Normalise(ranges_);
}

void IndexSet::AddAll(const IndexSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  Normalise(ranges_);
}

bool IndexSet::Contains(int index) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(),
                                      Range{index, index}, StartsBefore);
  return after != ranges_.begin() && index <= std::prev(after)->last;
}

IndexSet IndexSet::Without(const IndexSet& other) const {
  IndexSet left;
  auto cut = other.ranges_.begin();
  for (Range range : ranges_) {
    while (cut != other.ranges_.end() && cut->last < range.first) ++cut;
    // A cut that reaches past this range may reach into the next one.
    for (auto it = cut; it != other.ranges_.end() && it->first <= range.last;
         ++it) {
      if (range.first < it->first) {
        left.ranges_.push_back({range.first, it->first - 1});
      }
      range.first = it->last + 1;
    }
    if (range.first <= range.last) left.ranges_.push_back(range);
  }
  return left;
}

IndexSet IndexSet::Below(int end) const {
  IndexSet below;
  for (Range range : ranges_) {
    if (range.first >= end) break;
    below.ranges_.push_back({range.first, std::min(range.last, end - 1)});
  }
  return below;
}

std::vector<int> IndexSet::Values() const {
  std::vector<int> values;
  for (const Range range : ranges_) {
    for (int index = range.first; index <= range.last; ++index) {
      values.push_back(index);
    }
  }
  return values;
}

std::string IndexSet::ToString() const {
  return absl::StrJoin(ranges_, ",", [](std::string* out, const Range& range) {
    absl::StrAppend(out, range.first);
    if (range.last > range.first) absl::StrAppend(out, "-", range.last);
  });
}

absl::StatusOr<std::vector<int>> ParseIndexList(absl::string_view flag,
                                                absl::string_view text) {
  MOE_ASSIGN_OR_RETURN(const IndexSet set, IndexSet::Parse(flag, text));
  return set.Values();
}

}  // namespace moe
