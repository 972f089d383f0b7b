#include "experts/expert_workspace.h"

namespace moe {

void ExpertWorkspace::Run(const ExpertSpec& spec,
                          absl::Span<const PackedExpert> experts,
                          const ExpertBatch& batch, Matrix out) {
  const auto parallel_for = [this](auto ends, auto fn) {
    executor_->ParallelFor(ends, fn);
  };
  runner_.Run(spec, experts, batch, parallel_for, out);
}

void ExpertWorkspace::Multiply(const PackedMatrix& matrix, const float* bias,
                               ConstMatrix x, Matrix out) {
  const auto parallel_for = [this](auto ends, auto fn) {
    executor_->ParallelFor(ends, fn);
  };
  runner_.Multiply(matrix, bias, x, parallel_for, out);
}

}  // namespace moe
