#include "server/common/bytes_text.h"

#include <cstddef>
#include <iterator>

#include "absl/strings/str_format.h"

namespace moe {

std::string BytesText(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", bytes, kUnits[unit]);
}

}  // namespace moe
