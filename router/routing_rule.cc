#include "router/routing_rule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace moe {

absl::Status RoutingRule::Validate() const {
  const auto refuse = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (num_experts < 1 || num_experts > kMaxExperts) {
    return refuse("num_experts: want 1 to ", kMaxExperts, ", got ",
                  num_experts);
  }
  if (num_identity_experts < 0 || num_identity_experts >= num_experts) {
    return refuse("num_identity_experts: want 0 to ", num_experts - 1, ", got ",
                  num_identity_experts);
  }
  if (top_k < 1 || top_k > kMaxTopK || top_k > num_experts) {
    return refuse("top_k: want 1 to ", std::min(num_experts, kMaxTopK),
                  ", got ", top_k);
  }
  if (num_groups < 1 || num_experts % num_groups != 0) {
    return refuse("num_groups: want a divisor of ", num_experts, ", got ",
                  num_groups);
  }
  if (top_groups < 1 || top_groups > num_groups) {
    return refuse("top_groups: want 1 to ", num_groups, ", got ", top_groups);
  }
  if (top_k > top_groups * (num_experts / num_groups)) {
    return refuse("top_k: want at most ",
                  top_groups * (num_experts / num_groups),
                  " (the experts in the chosen groups), got ", top_k);
  }
  if (renormalize == Renormalize::kPNorm && !(renorm_p > 0.0F)) {
    return refuse("renorm_p: want a number > 0, got ", renorm_p);
  }
  if (score == ScoreFunction::kSparseMixer && top_k > 2) {
    return refuse("top_k: want 1 or 2 with the sparse mixer, got ", top_k);
  }
  return absl::OkStatus();
}

}  // namespace moe
