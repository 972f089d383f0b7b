// Memory that learned parameters take, by the format in which they lie.
//
// Thread-compatible: a plain value.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "experts/base/weight_format.h"

namespace moe {

class WeightsBytes {
 public:
  int64_t& operator[](WeightFormat format) {
    return bytes_[static_cast<size_t>(format)];
  }
  int64_t operator[](WeightFormat format) const {
    return bytes_[static_cast<size_t>(format)];
  }
  WeightsBytes& operator+=(const WeightsBytes& other) {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] += other.bytes_[i];
    return *this;
  }
  int64_t total() const {
    return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
  }

 private:
  std::array<int64_t, 1 + kPackedFormats.size()> bytes_{};  // by WeightFormat
};

}  // namespace moe
