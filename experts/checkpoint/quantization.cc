#include "experts/checkpoint/quantization.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

absl::StatusOr<std::optional<Config>> Find(const Config& config) {
  constexpr char kKey[] = "quantization_config";
  if (config.Has(kKey)) return config.OptionalSection(kKey);
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> text,
                       config.OptionalSection("text_config"));
  if (!text) return std::optional<Config>();
  return text->OptionalSection(kKey);
}

}  // namespace

absl::StatusOr<Quantization> ParseQuantization(const Config& config) {
  Quantization result;
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> section, Find(config));
  if (!section) return result;

  constexpr char kBlockKey[] = "weight_block_size";
  MOE_ASSIGN_OR_RETURN(const std::vector<int64_t> block,
                       section->Ints(kBlockKey));
  if (section->Has(kBlockKey)) {
    if (block.size() != 2 || block[0] < 1 || block[1] < 1) {
      return section->Error(kBlockKey, "two integers >= 1", ShapeText(block));
    }
    result.block_rows = block[0];
    result.block_cols = block[1];
  }

  // -1 stands for one group.
  MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> group,
                       section->OptionalInt("group_size", -1));
  if (group == 0) return section->Error("group_size", "-1 or >= 1", "0");
  if (group > 0) result.group_size = group;

  MOE_ASSIGN_OR_RETURN(result.method, section->StringOr("quant_method", ""));
  if (result.method == "awq") {
    MOE_ASSIGN_OR_RETURN(const std::string version,
                         section->StringOr("version", "gemm"));
    result.awq_version = absl::AsciiStrToLower(version);
  }
  // GPTQ's own key, then that of AutoRound.
  const bool gptq = result.method.empty() || result.method == "gptq";
  MOE_ASSIGN_OR_RETURN(
      const std::string packing,
      section->StringOr("packing_format", gptq ? "gptq" : result.method));
  MOE_ASSIGN_OR_RETURN(result.gptq_format,
                       section->StringOr("checkpoint_format", packing));
  return result;
}

std::optional<int> Quantization::gptq_zero_offset() const {
  if (gptq_format == "gptq" || gptq_format == "auto_round:auto_gptq") return 1;
  if (gptq_format == "gptq_v2" || gptq_format == "auto_round" ||
      gptq_format == "auto_round:gptqmodel") {
    return 0;
  }
  return std::nullopt;
}

}  // namespace moe
