#include "experts/checkpoint/text.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace moe {
namespace {

// Longer than any real name; keeps a message within a few lines.
constexpr size_t kMaxText = 160;

// More than any tensor of a model has.
constexpr size_t kMaxExtents = 8;

std::string OneLine(absl::string_view text) {
  const bool cut = text.size() > kMaxText;
  return absl::StrCat(absl::Utf8SafeCHexEscape(text.substr(0, kMaxText)),
                      cut ? "..." : "");
}

}  // namespace

std::string Quote(absl::string_view name) {
  return absl::StrCat("\"", OneLine(name), "\"");
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  const auto extent = [](std::string* out, int64_t value) {
    absl::StrAppend(out, value < 0 ? "?" : absl::StrCat(value));
  };
  const bool cut = shape.size() > kMaxExtents;
  return absl::StrCat(
      "[", absl::StrJoin(shape.subspan(0, kMaxExtents), ", ", extent),
      cut ? ", ...]" : "]");
}

std::string BaseName(absl::string_view path) {
  return OneLine(path.substr(path.find_last_of('/') + 1));
}

}  // namespace moe
