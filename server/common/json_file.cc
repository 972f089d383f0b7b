#include "server/common/json_file.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace moe {

absl::Status WriteJsonFile(absl::string_view flag, const std::string& path,
                           const nlohmann::ordered_json& value) {
  constexpr int kIndent = 1;
  std::ofstream file(path);
  // Texts that are no UTF-8 are mended, not thrown at the caller.
  file << value.dump(kIndent, ' ', /*ensure_ascii=*/false,
                     nlohmann::ordered_json::error_handler_t::replace)
       << "\n";
  file.close();
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": can't write ", path));
  }
  return absl::OkStatus();
}

}  // namespace moe
