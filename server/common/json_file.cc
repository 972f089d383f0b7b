#include "server/common/json_file.h"

#include "nlohmann/json.hpp"
#include "server/common/output_file.h"

namespace moe {

absl::Status WriteJsonFile(absl::string_view flag, const std::string& path,
                           const nlohmann::ordered_json& value) {
  constexpr int kIndent = 1;
  // Texts that are no UTF-8 are mended, not thrown at the caller.
  const std::string text =
      value.dump(kIndent, ' ', /*ensure_ascii=*/false,
                 nlohmann::ordered_json::error_handler_t::replace);
  return WriteOutputFile(flag, path, {text, "\n"});
}

}  // namespace moe
