#include "experts/checkpoint/config.h"

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/json.h"
#include "experts/checkpoint/mapped_file.h"
#include "experts/checkpoint/text.h"

namespace moe {

struct ConfigDocument {
  std::string file;
  std::string prefix;  // of keys in messages: "" at the top, "text_config."
  nlohmann::json object;
};

namespace {

using Json = nlohmann::json;

// Real ones have a few KiB; lists per layer and maps of labels make some
// larger.
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// Python writes non-finite numbers as bare words, which JSON doesn't have.
// Replaces those outside strings by null.
std::string WithoutPythonConstants(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  while (!text.empty()) {
    size_t length = 1;
    if (in_string) {
      // A backslash and what it escapes go together: \" ends no string.
      if (text[0] == '\\' && text.size() > 1) length = 2;
      if (text[0] == '"') in_string = false;
    } else if (text[0] == '"') {
      in_string = true;
    } else {
      for (const absl::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (absl::StartsWith(text, word)) {
          result += "null";
          text.remove_prefix(word.size());
          length = 0;
          break;
        }
      }
    }
    result.append(text.data(), length);
    text.remove_prefix(length);
  }
  return result;
}

// A value in a message: short, on one line.
std::string ValueText(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return Quote(value.get_ref<const std::string&>());
  return value.dump();
}

// How JSON values become C++ ones: nothing if the type is another.
std::optional<int64_t> ToInt(const Json& value) {
  if (value.is_number_float()) {
    // Some writers print 8 as 8.0.
    const auto number = value.get<double>();
    const bool whole =
        std::trunc(number) == number && std::abs(number) <= 0x1p53;
    if (!whole) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() >
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}
std::optional<double> ToDouble(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  return value.get<double>();
}
std::optional<bool> ToBool(const Json& value) {
  if (!value.is_boolean()) return std::nullopt;
  return value.get<bool>();
}
std::optional<std::string> ToString(const Json& value) {
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

// Null if absent.
const Json* Find(const ConfigDocument& document, absl::string_view key) {
  const auto found = document.object.find(std::string(key));
  const bool there = found != document.object.end() && !found->is_null();
  return there ? &*found : nullptr;
}

absl::Status WrongValue(const ConfigDocument& document, absl::string_view key,
                        absl::string_view want, absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(document.file, ": ", document.prefix, key, ": want ", want,
                   ", got ", got));
}

template <typename T>
absl::StatusOr<std::optional<T>> Get(const ConfigDocument& document,
                                     absl::string_view key,
                                     absl::string_view want,
                                     std::optional<T> (*convert)(const Json&)) {
  const Json* json = Find(document, key);
  if (json == nullptr) return std::optional<T>();
  std::optional<T> value = convert(*json);
  if (!value) return WrongValue(document, key, want, ValueText(*json));
  return value;
}

template <typename T>
absl::StatusOr<std::vector<T>> GetList(
    const ConfigDocument& document, absl::string_view key,
    absl::string_view want, std::optional<T> (*convert)(const Json&)) {
  std::vector<T> values;
  const Json* json = Find(document, key);
  if (json == nullptr) return values;
  if (!json->is_array()) {
    return WrongValue(document, key, absl::StrCat("a list of ", want, "s"),
                      ValueText(*json));
  }
  for (const Json& item : *json) {
    const std::optional<T> value = convert(item);
    if (!value) {
      return WrongValue(document, absl::StrCat(key, "[", values.size(), "]"),
                        absl::StrCat("a list of ", want, "s"), ValueText(item));
    }
    values.push_back(*value);
  }
  return values;
}

template <typename T>
absl::StatusOr<T> Required(const ConfigDocument& document,
                           absl::string_view key, absl::string_view want,
                           absl::StatusOr<std::optional<T>> value) {
  if (!value.ok()) return std::move(value).status();
  if (!value->has_value()) return WrongValue(document, key, want, "nothing");
  return **std::move(value);
}

template <typename T>
absl::StatusOr<T> Otherwise(absl::StatusOr<std::optional<T>> value,
                            T otherwise) {
  if (!value.ok()) return std::move(value).status();
  return (*std::move(value)).value_or(std::move(otherwise));
}

std::string WantInt(int64_t min) { return absl::StrCat("an integer >= ", min); }
constexpr char kWantNumber[] = "a number";
constexpr char kWantBool[] = "true or false";
constexpr char kWantString[] = "a string";
constexpr char kWantObject[] = "an object";

}  // namespace

absl::StatusOr<Config> Config::Open(const std::string& path) {
  MOE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  return Parse(absl::string_view(reinterpret_cast<const char*>(bytes.data()),
                                 bytes.size()),
               file.name());
}

absl::StatusOr<Config> Config::Parse(absl::string_view text,
                                     absl::string_view file) {
  if (text.size() > kMaxConfigBytes) {
    return absl::DataLossError(absl::StrCat(
        file, ": want at most ", kMaxConfigBytes, " bytes, got ", text.size()));
  }
  MOE_ASSIGN_OR_RETURN(Json json,
                       ParseJson(WithoutPythonConstants(text), file));
  if (!json.is_object()) {
    return absl::DataLossError(
        absl::StrCat(file, ": want an object, got ", ValueText(json)));
  }
  return Config(std::make_shared<const ConfigDocument>(
      ConfigDocument{std::string(file), "", std::move(json)}));
}

bool Config::Has(absl::string_view key) const {
  return Find(*document_, key) != nullptr;
}

std::vector<std::string> Config::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : document_->object.items()) {
    keys.push_back(key);
  }
  return keys;
}

bool Config::empty() const { return document_->object.empty(); }

bool Config::IsNull(absl::string_view key) const {
  const auto found = document_->object.find(std::string(key));
  return found != document_->object.end() && found->is_null();
}

std::string Config::Text(absl::string_view key) const {
  const Json* json = Find(*document_, key);
  return json == nullptr ? "nothing" : ValueText(*json);
}

bool Config::SameValue(absl::string_view a, absl::string_view b) const {
  const Json* first = Find(*document_, a);
  const Json* second = Find(*document_, b);
  if (first == nullptr || second == nullptr) return first == second;
  return *first == *second;
}

bool Config::IsList(absl::string_view key) const {
  const Json* json = Find(*document_, key);
  return json != nullptr && json->is_array();
}

absl::StatusOr<std::optional<int64_t>> Config::OptionalInt(
    absl::string_view key, int64_t min) const {
  auto value = Get<int64_t>(*document_, key, WantInt(min), ToInt);
  if (value.ok() && *value && **value < min) {
    return WrongValue(*document_, key, WantInt(min), absl::StrCat(**value));
  }
  return value;
}
absl::StatusOr<int64_t> Config::Int(absl::string_view key, int64_t min) const {
  return Required(*document_, key, WantInt(min), OptionalInt(key, min));
}
absl::StatusOr<int64_t> Config::IntOr(absl::string_view key, int64_t otherwise,
                                      int64_t min) const {
  return Otherwise(OptionalInt(key, min), otherwise);
}

absl::StatusOr<std::optional<double>> Config::OptionalDouble(
    absl::string_view key) const {
  return Get<double>(*document_, key, kWantNumber, ToDouble);
}
absl::StatusOr<double> Config::Double(absl::string_view key) const {
  return Required(*document_, key, kWantNumber, OptionalDouble(key));
}
absl::StatusOr<double> Config::DoubleOr(absl::string_view key,
                                        double otherwise) const {
  return Otherwise(OptionalDouble(key), otherwise);
}

absl::StatusOr<std::optional<bool>> Config::OptionalBool(
    absl::string_view key) const {
  return Get<bool>(*document_, key, kWantBool, ToBool);
}
absl::StatusOr<bool> Config::Bool(absl::string_view key) const {
  return Required(*document_, key, kWantBool, OptionalBool(key));
}
absl::StatusOr<bool> Config::BoolOr(absl::string_view key,
                                    bool otherwise) const {
  return Otherwise(OptionalBool(key), otherwise);
}

absl::StatusOr<std::optional<std::string>> Config::OptionalString(
    absl::string_view key) const {
  return Get<std::string>(*document_, key, kWantString, ToString);
}
absl::StatusOr<std::string> Config::String(absl::string_view key) const {
  return Required(*document_, key, kWantString, OptionalString(key));
}
absl::StatusOr<std::string> Config::StringOr(
    absl::string_view key, absl::string_view otherwise) const {
  return Otherwise(OptionalString(key), std::string(otherwise));
}

absl::StatusOr<std::vector<int64_t>> Config::Ints(absl::string_view key) const {
  return GetList<int64_t>(*document_, key, "integer", ToInt);
}
absl::StatusOr<std::vector<bool>> Config::Bools(absl::string_view key) const {
  return GetList<bool>(*document_, key, "boolean", ToBool);
}
absl::StatusOr<std::vector<std::string>> Config::Strings(
    absl::string_view key) const {
  return GetList<std::string>(*document_, key, "string", ToString);
}

absl::StatusOr<std::optional<Config>> Config::OptionalSection(
    absl::string_view key) const {
  const Json* json = Find(*document_, key);
  if (json == nullptr) return std::optional<Config>();
  if (!json->is_object()) {
    return WrongValue(*document_, key, kWantObject, ValueText(*json));
  }
  return std::optional<Config>(
      Config(std::make_shared<const ConfigDocument>(ConfigDocument{
          document_->file, absl::StrCat(document_->prefix, key, "."), *json})));
}
absl::StatusOr<Config> Config::Section(absl::string_view key) const {
  return Required(*document_, key, kWantObject, OptionalSection(key));
}

absl::Status Config::Error(absl::string_view key, absl::string_view want,
                           absl::string_view got) const {
  return WrongValue(*document_, key, want, got);
}

}  // namespace moe
