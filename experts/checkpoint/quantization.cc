#include "experts/checkpoint/quantization.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

// The object under one of `keys`, at the top or in `text_config`.
absl::StatusOr<std::optional<Config>> Find(
    const Config& config, std::initializer_list<absl::string_view> keys) {
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> text,
                       config.OptionalSection("text_config"));
  for (const absl::string_view key : keys) {
    if (config.Has(key)) return config.OptionalSection(key);
    if (text && text->Has(key)) return text->OptionalSection(key);
  }
  return std::optional<Config>();
}

// The first one is what the library calls it now.
constexpr std::initializer_list<absl::string_view> kSections = {
    "quantization_config", "compression_config"};

using Names = std::initializer_list<absl::string_view>;

// OK if `key` of `section` is absent or one of `known`.
absl::Status WantOneOf(const Config& section, absl::string_view key,
                       Names known, absl::string_view method) {
  MOE_ASSIGN_OR_RETURN(const std::optional<std::string> name,
                       section.OptionalString(key));
  if (!name || std::find(known.begin(), known.end(), *name) != known.end()) {
    return absl::OkStatus();
  }
  const auto quote = [](std::string* out, absl::string_view one) {
    absl::StrAppend(out, "\"", one, "\"");
  };
  return absl::UnimplementedError(absl::StrCat(
      section.Error(key, absl::StrJoin(known, " or ", quote), Quote(*name))
          .message(),
      method.empty() ? ""
                     : absl::StrCat(", from quant_method ", Quote(method))));
}

absl::Status WantInt(const Config& section, absl::string_view key, int64_t want,
                     absl::string_view method) {
  MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> got,
                       section.OptionalInt(key));
  if (!got || *got == want) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      section.Error(key, absl::StrCat(want), absl::StrCat(*got)).message(),
      ", from quant_method ", Quote(method)));
}

// compressed-tensors: one format, or one for each group of modules.
absl::Status CheckCompressedTensors(const Config& section,
                                    absl::string_view method) {
  const Names formats = {"pack-quantized", "float-quantized", "naive-quantized",
                         "dense"};
  MOE_RETURN_IF_ERROR(WantOneOf(section, "format", formats, method));
  for (const absl::string_view key : {"transform_config", "sparsity_config"}) {
    MOE_ASSIGN_OR_RETURN(const std::optional<Config> other,
                         section.OptionalSection(key));
    if (!other || other->empty()) continue;
    MOE_ASSIGN_OR_RETURN(const std::string format,
                         other->StringOr("format", ""));
    if (key == "sparsity_config" && format == "dense") continue;
    return absl::UnimplementedError(
        absl::StrCat(section.Error(key, "nothing", section.Text(key)).message(),
                     ", from quant_method ", Quote(method)));
  }
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> groups,
                       section.OptionalSection("config_groups"));
  if (!groups) return absl::OkStatus();
  for (const std::string& name : groups->Keys()) {
    MOE_ASSIGN_OR_RETURN(const Config group, groups->Section(name));
    MOE_RETURN_IF_ERROR(WantOneOf(group, "format", formats, method));
    MOE_ASSIGN_OR_RETURN(const std::optional<Config> weights,
                         group.OptionalSection("weights"));
    if (!weights) continue;
    MOE_ASSIGN_OR_RETURN(const std::string type,
                         weights->StringOr("type", "int"));
    MOE_RETURN_IF_ERROR(WantOneOf(*weights, "type", {"int", "float"}, method));
    MOE_RETURN_IF_ERROR(
        WantInt(*weights, "num_bits", type == "int" ? 4 : 8, method));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Quantization> ParseQuantization(const Config& config) {
  Quantization result;
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> section,
                       Find(config, kSections));
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
  MOE_ASSIGN_OR_RETURN(result.symmetric, section->BoolOr("sym", false));
  // GPTQ's own key, then that of AutoRound.
  const bool gptq = result.method.empty() || result.method == "gptq";
  MOE_ASSIGN_OR_RETURN(
      const std::string packing,
      section->StringOr("packing_format", gptq ? "gptq" : result.method));
  MOE_ASSIGN_OR_RETURN(result.gptq_format,
                       section->StringOr("checkpoint_format", packing));
  return result;
}

absl::Status CheckQuantization(const Config& config) {
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> mlx,
                       Find(config, {"quantization"}));
  if (mlx && mlx->Has("bits")) {
    return absl::UnimplementedError(absl::StrCat(
        config.Error("quantization", "nothing", "an object").message(),
        ": MLX has quantised these weights, to ", mlx->Text("bits"),
        " bits in groups of ", mlx->Text("group_size"),
        ", which is not supported"));
  }
  MOE_ASSIGN_OR_RETURN(const std::optional<Config> section,
                       Find(config, kSections));
  if (!section) return absl::OkStatus();
  MOE_RETURN_IF_ERROR(
      WantOneOf(*section, "quant_method",
                {"fp8", "mxfp4", "gptq", "awq", "auto-round",
                 "compressed-tensors", "fbgemm_fp8", "modelopt"},
                ""));
  MOE_ASSIGN_OR_RETURN(const std::string method,
                       section->StringOr("quant_method", ""));
  if (method == "compressed-tensors") {
    return CheckCompressedTensors(*section, method);
  }
  if (method == "fp8") return WantOneOf(*section, "fmt", {"e4m3"}, method);
  if (method == "modelopt") {
    return WantOneOf(*section, "quant_algo", {"FP8"}, method);
  }
  if (method == "gptq" || method == "awq" || method == "auto-round") {
    return WantInt(*section, "bits", 4, method);
  }
  return absl::OkStatus();
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
