#include "experts/base/weight_format.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace moe {
namespace {

struct Entry {
  WeightFormat format;
  absl::string_view name;
};
constexpr Entry kFormats[] = {
    {WeightFormat::kAuto, "auto"}, {WeightFormat::kF32, "f32"},
    {WeightFormat::kBF16, "bf16"}, {WeightFormat::kF16, "f16"},
    {WeightFormat::kFp8, "fp8"},   {WeightFormat::kMxfp4, "mxfp4"},
    {WeightFormat::kInt8, "int8"}, {WeightFormat::kInt4, "int4"},
};

}  // namespace

absl::string_view WeightFormatName(WeightFormat format) {
  for (const Entry& entry : kFormats) {
    if (entry.format == format) return entry.name;
  }
  return "?";
}

absl::StatusOr<WeightFormat> ParseWeightFormat(absl::string_view name) {
  std::string names;
  for (const Entry& entry : kFormats) {
    if (entry.name == name) return entry.format;
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "weight format: want one of ", names, "; got \"", name, "\""));
}

}  // namespace moe
