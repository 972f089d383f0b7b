// Sets of indices as people write them: "0-3,7".

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moe {

// A set of integers in [0, kMaxIndex], kept as ranges: its memory is that of
// its text, whatever the ranges span.
//
// Thread-compatible: a plain value.
class IndexSet {
 public:
  static constexpr int kMaxIndex = 100'000;

  struct Range {
    int first;
    int last;  // inclusive

    friend bool operator==(const Range& a, const Range& b) {
      return a.first == b.first && a.last == b.last;
    }
  };

  IndexSet() = default;
  // [0, count).
  static IndexSet UpTo(int count);
  // Numbers and ranges in any order, as in "7,0-3"; they may overlap. Empty
  // text is the empty set.
  //
  // field: what errors call it, as in "--layers".
  // Errors: INVALID_ARGUMENT.
  static absl::StatusOr<IndexSet> Parse(absl::string_view field,
                                        absl::string_view text);

  // Requires: 0 <= first <= last <= kMaxIndex.
  void Add(Range range);
  void AddAll(const IndexSet& other);

  bool empty() const { return ranges_.empty(); }
  bool Contains(int index) const;
  // Those of this set that `other` has not.
  IndexSet Without(const IndexSet& other) const;
  // Those below `end`.
  IndexSet Below(int end) const;

  // Ascending; no two touch.
  absl::Span<const Range> ranges() const { return ranges_; }
  // Ascending and distinct.
  std::vector<int> Values() const;
  // "0-3,7"; the shortest text that Parse makes this set of.
  std::string ToString() const;

 private:
  std::vector<Range> ranges_;
};

// The values of IndexSet::Parse.
absl::StatusOr<std::vector<int>> ParseIndexList(absl::string_view flag,
                                                absl::string_view text);

}  // namespace moe
