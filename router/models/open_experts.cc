#include "router/models/open_experts.h"

#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/open_matrix.h"

namespace moe {
namespace {

// The outputs of a tensor that belong to a part: first, first + step, ...
struct PartOutputs {
  int64_t first = 0;
  int64_t step = 1;
  int64_t of = 1;  // parts in the tensor
};

PartOutputs OutputsOf(Part part, int64_t rows) {
  switch (part) {
    case Part::kAll:
      return {.first = 0, .step = 1, .of = 1};
    case Part::kFirstHalf:
      return {.first = 0, .step = 1, .of = 2};
    case Part::kSecondHalf:
      return {.first = rows, .step = 1, .of = 2};
    case Part::kEven:
      return {.first = 0, .step = 2, .of = 2};
    case Part::kOdd:
      return {.first = 1, .step = 2, .of = 2};
  }
  return {};
}

// Opens what the tensor has of one expert: [rows, cols].
absl::StatusOr<StoredMatrix> OpenStacked(const Checkpoint& checkpoint,
                                         const ProjectionSpec& spec,
                                         int64_t num_experts, int64_t expert,
                                         int64_t rows, int64_t cols) {
  switch (spec.stacking) {
    case Stacking::kSeparate:
      return OpenMatrix(checkpoint, ExpertTensor(spec.tensor, expert), rows,
                        cols, spec.order);
    case Stacking::kStacked: {
      MOE_ASSIGN_OR_RETURN(
          const StoredStack stack,
          OpenStack(checkpoint, spec.tensor, num_experts + spec.unused_experts,
                    rows, cols, spec.order));
      return stack[expert];
    }
    case Stacking::kFlat: {
      const bool turned = spec.order == StoredOrder::kInOut;
      const int64_t stored_rows = turned ? cols : rows;
      const int64_t stored_cols = turned ? rows : cols;
      MOE_ASSIGN_OR_RETURN(const StoredMatrix flat,
                           OpenMatrix(checkpoint, spec.tensor,
                                      num_experts * stored_rows, stored_cols));
      const StoredMatrix one = flat.Rows(expert * stored_rows, stored_rows);
      return turned ? one.Transposed() : one;
    }
  }
  return absl::InternalError("stacking: unknown");
}

// The bias beside it: [rows].
absl::StatusOr<std::vector<float>> ReadStackedBias(const Checkpoint& checkpoint,
                                                   const ProjectionSpec& spec,
                                                   int64_t num_experts,
                                                   int64_t expert,
                                                   int64_t rows) {
  const std::string name = BiasName(spec.tensor);
  if (spec.stacking == Stacking::kSeparate) {
    return ReadVector(checkpoint, ExpertTensor(name, expert), rows);
  }
  MOE_ASSIGN_OR_RETURN(const StoredMatrix all,
                       OpenMatrix(checkpoint, name, num_experts, rows));
  std::vector<float> bias(static_cast<size_t>(rows));
  all.Read(expert, 0, absl::MakeSpan(bias));
  return bias;
}

}  // namespace

bool HasMatrix(const Checkpoint& checkpoint, absl::string_view name) {
  const absl::string_view stem = absl::StripSuffix(name, ".weight");
  return checkpoint.Contains(name) ||
         checkpoint.Contains(absl::StrCat(name, "_packed")) ||
         checkpoint.Contains(absl::StrCat(name, "_blocks")) ||
         checkpoint.Contains(absl::StrCat(stem, ".qweight"));
}

absl::StatusOr<std::vector<StoredExpert>> OpenExperts(
    const Checkpoint& checkpoint, const ExpertSetSpec& set) {
  std::vector<int32_t> all(static_cast<size_t>(set.num_experts));
  std::iota(all.begin(), all.end(), 0);
  return OpenExperts(checkpoint, set, all);
}

absl::StatusOr<std::vector<StoredExpert>> OpenExperts(
    const Checkpoint& checkpoint, const ExpertSetSpec& set,
    absl::Span<const int32_t> ids) {
  std::vector<StoredExpert> experts(static_cast<size_t>(set.num_experts));
  for (const int32_t e : ids) {
    StoredExpert& expert = experts[static_cast<size_t>(e)];
    for (size_t p = 0; p < kNumProjections; ++p) {
      const auto projection = static_cast<Projection>(p);
      if (projection == Projection::kGate && !set.expert.gated) continue;
      const bool down = projection == Projection::kDown;
      const int64_t rows = down ? set.expert.d_model : set.expert.d_ff;
      const int64_t cols = down ? set.expert.d_ff : set.expert.d_model;
      const ProjectionSpec& spec = set.projections[p];
      const PartOutputs outputs = OutputsOf(spec.part, rows);
      MOE_ASSIGN_OR_RETURN(const StoredMatrix stored,
                           OpenStacked(checkpoint, spec, set.num_experts, e,
                                       rows * outputs.of, cols));
      expert.weights[p] = stored.Rows(outputs.first, rows, outputs.step);
      if (!set.expert.has_bias) continue;
      MOE_ASSIGN_OR_RETURN(const std::vector<float> bias,
                           ReadStackedBias(checkpoint, spec, set.num_experts, e,
                                           rows * outputs.of));
      for (int64_t row = 0; row < rows; ++row) {
        expert.biases[p].push_back(
            bias[static_cast<size_t>(outputs.first + row * outputs.step)]);
      }
    }
  }
  return experts;
}

}  // namespace moe
