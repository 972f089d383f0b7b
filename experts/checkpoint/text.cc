#include "experts/checkpoint/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace moe {
namespace {

// Longer than any real tensor name; keeps a message within a few lines.
constexpr size_t kMaxQuoted = 160;

}  // namespace

std::string Quote(absl::string_view name) {
  const bool cut = name.size() > kMaxQuoted;
  return absl::StrCat("\"",
                      absl::Utf8SafeCHexEscape(name.substr(0, kMaxQuoted)),
                      cut ? "...\"" : "\"");
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  const auto extent = [](std::string* out, int64_t value) {
    absl::StrAppend(out, value < 0 ? "?" : absl::StrCat(value));
  };
  return absl::StrCat("[", absl::StrJoin(shape, ", ", extent), "]");
}

std::string BaseName(absl::string_view path) {
  return std::string(path.substr(path.find_last_of('/') + 1));
}

}  // namespace moe
