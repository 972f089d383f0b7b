#include "experts/linear.h"

#include <algorithm>

namespace moe {

Linear::Linear(ConstMatrix weights, absl::Span<const float> bias) {
  const PackedLayout layout =
      PackedLayout::For(WeightFormat::kF32, weights.rows(), weights.cols());
  uint8_t* packed = memory_.Grow(layout.bytes() + kPackedSlack);
  for (int64_t panel = 0; panel < layout.panels(); ++panel) {
    PackPanel(
        layout,
        [&](int64_t row, int64_t col, absl::Span<float> out) {
          std::copy_n(weights.Row(row) + col, out.size(), out.begin());
        },
        panel, packed + panel * layout.panel_bytes());
  }
  weights_ = {.layout = layout, .data = packed, .panels = layout.panels()};
  if (bias.empty()) return;
  const int64_t padded = layout.panels() * kPanelWidth;
  bias_.Grow(padded);
  std::fill(std::copy(bias.begin(), bias.end(), bias_.data()),
            bias_.data() + padded, 0.0F);
}

void Linear::Forward(ConstMatrix x, ExpertWorkspace& workspace,
                     Matrix out) const {
  workspace.Multiply(weights_, bias_.data(), x, out);
}

}  // namespace moe
