#include "server/common/read_file.h"

#include <fstream>
#include <ios>

#include "absl/strings/str_cat.h"

namespace moe {

absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag,
                                          const std::string& path,
                                          size_t max_bytes) {
  constexpr size_t kPart = 1 << 16;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  while (file.good() && text.size() <= max_bytes) {
    const size_t size = text.size();
    text.resize(size + kPart);
    file.read(&text[size], kPart);
    text.resize(size + static_cast<size_t>(file.gcount()));
  }
  // A folder can be opened, but not read.
  if (!file.is_open() || file.bad() || (text.empty() && !file.eof())) {
    return absl::NotFoundError(absl::StrCat(flag, ": can't read ", path));
  }
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": want a file of at most ", max_bytes, " bytes: ", path));
  }
  return text;
}

}  // namespace moe
