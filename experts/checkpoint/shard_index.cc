#include "experts/checkpoint/shard_index.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/json.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

// Those of the largest models have 20 MB.
constexpr size_t kMaxIndexBytes = 100'000'000;

bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         !absl::StrContains(name, "/") &&
         name.find('\0') == absl::string_view::npos;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(
    absl::string_view text, absl::string_view file) {
  if (text.size() > kMaxIndexBytes) {
    return absl::DataLossError(absl::StrCat(
        file, ": want at most ", kMaxIndexBytes, " bytes, got ", text.size()));
  }
  MOE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, file));
  if (!json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object()) {
    return absl::DataLossError(
        absl::StrCat(file, ": weight_map: want an object"));
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string() ||
        !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return absl::DataLossError(absl::StrCat(
          file, ": tensor ", Quote(tensor),
          ": want the name of a file in the same folder, got ",
          shard.is_string() ? Quote(shard.get_ref<const std::string&>())
                            : std::string(shard.type_name())));
    }
    shards[tensor] = shard.get<std::string>();
  }
  return shards;
}

}  // namespace moe
