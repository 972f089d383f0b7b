#include "router/dispatch.h"

#include <numeric>

#include "experts/base/check.h"

namespace moe {

void Dispatch::Build(MatrixView<const int32_t> ids, ConstMatrix weights,
                     int64_t num_ffn_experts, WeightPlacement placement) {
  MOE_DCHECK(ids.rows() == weights.rows() && ids.cols() == weights.cols());
  // Counting sort: stable, so the rows of an expert ascend.
  offsets_.assign(static_cast<size_t>(num_ffn_experts) + 1, 0);
  for (int64_t t = 0; t < ids.rows(); ++t) {
    for (int64_t j = 0; j < ids.cols(); ++j) {
      const int32_t id = ids.Row(t)[j];
      if (id >= 0 && id < num_ffn_experts) {
        ++offsets_[static_cast<size_t>(id) + 1];
      }
    }
  }
  for (size_t e = 1; e < offsets_.size(); ++e) offsets_[e] += offsets_[e - 1];

  const auto num_assignments = static_cast<size_t>(offsets_.back());
  const bool scale_input = placement == WeightPlacement::kInput;
  rows_.resize(num_assignments);
  input_scales_.resize(scale_input ? num_assignments : 0);
  assignments_.resize(static_cast<size_t>(ids.rows() * ids.cols()));
  // While filling, offsets_[e] is the next free place of expert e; afterwards
  // it is the end of e, that is the start of e + 1.
  size_t pair = 0;
  for (int64_t t = 0; t < ids.rows(); ++t) {
    for (int64_t j = 0; j < ids.cols(); ++j, ++pair) {
      const int32_t id = ids.Row(t)[j];
      if (id < 0) {
        assignments_[pair] = kSkipped;
      } else if (id >= num_ffn_experts) {
        assignments_[pair] = kUnchanged;
      } else {
        const int32_t at = offsets_[static_cast<size_t>(id)]++;
        assignments_[pair] = at;
        rows_[static_cast<size_t>(at)] = static_cast<int32_t>(t);
        if (scale_input) {
          input_scales_[static_cast<size_t>(at)] = weights.Row(t)[j];
        }
      }
    }
  }
  for (size_t e = offsets_.size() - 1; e > 0; --e)
    offsets_[e] = offsets_[e - 1];
  offsets_[0] = 0;
}

void Dispatch::BuildDense(int64_t tokens) {
  offsets_.assign({0, static_cast<int32_t>(tokens)});
  rows_.resize(static_cast<size_t>(tokens));
  std::iota(rows_.begin(), rows_.end(), 0);
  input_scales_.clear();
  assignments_.clear();
}

ExpertBatch Dispatch::Batch(ConstMatrix hidden_states) const {
  return ExpertBatch{.hidden_states = hidden_states,
                     .offsets = offsets_,
                     .rows = rows_,
                     .input_scales = input_scales_};
}

}  // namespace moe
