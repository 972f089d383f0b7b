// Which experts of a batch have not been run, and why.
//
// Thread-compatible: a plain value.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace moe {

class ExpertFailures {
 public:
  struct Failure {
    int32_t expert;
    absl::Status status;  // not OK
  };

  // Whether all experts have been run.
  bool empty() const { return failures_.empty(); }
  // Ascending by expert.
  auto begin() const { return failures_.begin(); }
  auto end() const { return failures_.end(); }

  // Why an expert has not been run; OK if it has, or had no rows.
  absl::Status StatusOf(int64_t expert) const {
    const auto found = FirstFrom(expert);
    return found != end() && found->expert == expert ? found->status
                                                     : absl::OkStatus();
  }

  void Clear() { failures_.clear(); }
  // Requires: a status that is not OK, of an expert that has not failed yet.
  void Add(int32_t expert, absl::Status status) {
    failures_.insert(FirstFrom(expert), {expert, std::move(status)});
  }

 private:
  // The first failure of an expert that is not below this one.
  std::vector<Failure>::const_iterator FirstFrom(int64_t expert) const {
    return std::lower_bound(
        begin(), end(), expert,
        [](const Failure& failure, int64_t e) { return failure.expert < e; });
  }

  std::vector<Failure> failures_;
};

}  // namespace moe
