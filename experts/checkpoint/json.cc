#include "experts/checkpoint/json.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

using Json = nlohmann::json;

// Deeper than any configuration; bounds what a hostile file can make us nest.
constexpr size_t kMaxDepth = 64;

// Builds the document from the parser's events; an event that returns false
// stops the parser, with the reason in error().
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(int64_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override {
    return Add(value) != nullptr;
  }
  bool number_float(double value, const std::string& /*source*/) override {
    return Add(value) != nullptr;
  }
  bool string(std::string& value) override {
    return Add(std::move(value)) != nullptr;
  }
  bool binary(Json::binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t /*size*/) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    if (open_.back()->contains(name)) {
      error_ = absl::StrCat("key ", Quote(name), " appears twice");
      return false;
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    error_position_ = position;
    return false;
  }

  Json&& TakeRoot() { return std::move(root_); }
  // Empty if the text is not JSON at all: see error_position.
  const std::string& error() const { return error_; }
  size_t error_position() const { return error_position_; }

 private:
  // Puts a value where the parser stands; returns where it went, or null if
  // there are too many.
  Json* Add(Json value) {
    if (++num_values_ > kMaxJsonValues) {
      error_ = absl::StrCat("more than ", kMaxJsonValues, " values");
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }
  bool Open(Json container) {
    if (open_.size() == kMaxDepth) {
      error_ = absl::StrCat("nested deeper than ", kMaxDepth);
      return false;
    }
    Json* added = Add(std::move(container));
    if (added == nullptr) return false;
    // The pointers stay good: a container does not grow while one inside it is
    // open.
    open_.push_back(added);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // containers not yet closed, outermost first
  std::string key_;          // of the value that comes next
  size_t num_values_ = 0;
  std::string error_;
  size_t error_position_ = 1;  // in bytes, from 1
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         absl::string_view file) {
  Builder builder;
  size_t error_position = 0;  // in bytes, from 0
  // The library takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    error_position = zero;
  } else if (Json::sax_parse(text.begin(), text.end(), &builder)) {
    return builder.TakeRoot();
  } else if (!builder.error().empty()) {
    return absl::DataLossError(absl::StrCat(file, ": ", builder.error()));
  } else {
    error_position = builder.error_position() - 1;
  }
  const auto before = text.substr(0, error_position);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto column = before.size() - (before.rfind('\n') + 1) + 1;
  return absl::DataLossError(absl::StrCat(file, ": not valid JSON at line ",
                                          line, ", column ", column));
}

}  // namespace moe
