#include "router/models/family_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

std::vector<absl::string_view> Spellings(const RuleKey& rule) {
  return absl::StrSplit(rule.key, '=');
}

// What the table has for an absent key, if it is of that type.
template <typename T>
std::optional<T> Otherwise(const RuleKey& rule) {
  const T* value = std::get_if<T>(&rule.otherwise);
  if (value == nullptr) return std::nullopt;
  return *value;
}

std::string ValueText(const KeyValue& value) {
  struct Printer {
    std::string operator()(std::monostate) const { return "nothing"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const { return absl::StrCat(v); }
    std::string operator()(absl::string_view v) const { return Quote(v); }
  };
  return std::visit(Printer(), value);
}

// Whether the config has the value that a held key must have.
absl::StatusOr<bool> HoldsValue(const Config& config, const std::string& key,
                                const KeyValue& want) {
  if (const auto* flag = std::get_if<bool>(&want)) {
    MOE_ASSIGN_OR_RETURN(const bool got, config.Bool(key));
    return got == *flag;
  }
  if (const auto* number = std::get_if<int64_t>(&want)) {
    MOE_ASSIGN_OR_RETURN(const double got, config.Double(key));
    return got == static_cast<double>(*number);
  }
  if (const auto* number = std::get_if<double>(&want)) {
    MOE_ASSIGN_OR_RETURN(const double got, config.Double(key));
    return got == *number;
  }
  if (const auto* text = std::get_if<absl::string_view>(&want)) {
    MOE_ASSIGN_OR_RETURN(const std::string got, config.String(key));
    return got == *text;
  }
  return false;
}

}  // namespace

const RuleKey& FamilyConfig::Rule(absl::string_view key) const {
  const auto found = std::find_if(
      keys_.begin(), keys_.end(),
      [key](const RuleKey& rule) { return Spellings(rule).front() == key; });
  MOE_CHECK(found != keys_.end());
  return *found;
}

absl::StatusOr<FamilyConfig::Place> FamilyConfig::Follow(
    absl::string_view path) const {
  std::vector<std::string> parts = absl::StrSplit(path, '.');
  Place place{config_, parts.back(), nullptr};
  parts.pop_back();
  for (const std::string& part : parts) {
    MOE_ASSIGN_OR_RETURN(const std::optional<Config> section,
                         place.config.OptionalSection(part));
    if (!section) return Place{place.config, std::string(path), nullptr};
    place.config = *section;
  }
  return place;
}

absl::StatusOr<FamilyConfig::Place> FamilyConfig::Find(
    absl::string_view key) const {
  std::optional<Place> first;
  for (const absl::string_view alternative : absl::StrSplit(key, '|')) {
    const RuleKey& rule = Rule(alternative);
    for (const absl::string_view spelling : Spellings(rule)) {
      MOE_ASSIGN_OR_RETURN(Place place, Follow(spelling));
      place.rule = &rule;
      if (place.config.Has(place.key)) return place;
      if (!first) first = std::move(place);
    }
  }
  return *first;
}

absl::Status FamilyConfig::Check() const {
  for (const RuleKey& rule : keys_) {
    std::optional<Place> found;
    for (const absl::string_view spelling : Spellings(rule)) {
      MOE_ASSIGN_OR_RETURN(Place place, Follow(spelling));
      const bool needs_value =
          !rule.nullable &&
          !std::holds_alternative<std::monostate>(rule.otherwise);
      if (needs_value && place.config.IsNull(place.key)) {
        return place.config.Error(
            place.key,
            absl::StrCat("a value, or no such key, which stands for ",
                         ValueText(rule.otherwise)),
            "null");
      }
      if (!place.config.Has(place.key)) continue;
      if (found && !config_.SameValue(found->key, place.key)) {
        return place.config.Error(
            place.key,
            absl::StrCat(found->config.Text(found->key), ", as ", found->key,
                         " has, which means the same"),
            place.config.Text(place.key));
      }
      if (!found) found = std::move(place);
    }
    if (!found && rule.use == KeyUse::kNeeded) {
      return Error(Spellings(rule).front(), "a value", "nothing");
    }
    if (!found || rule.use != KeyUse::kHeld) continue;
    MOE_ASSIGN_OR_RETURN(const bool held,
                         HoldsValue(found->config, found->key, rule.otherwise));
    if (!held) {
      return absl::UnimplementedError(found->config
                                          .Error(found->key,
                                                 ValueText(rule.otherwise),
                                                 found->config.Text(found->key))
                                          .message());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> FamilyConfig::OptionalInt(
    absl::string_view key, int64_t layer, int64_t min) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  if (!place.config.IsList(place.key)) {
    MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                         place.config.OptionalInt(place.key, min));
    if (value || place.config.IsNull(place.key)) return value;
    return Otherwise<int64_t>(*place.rule);
  }
  MOE_ASSIGN_OR_RETURN(const std::vector<int64_t> values,
                       place.config.Ints(place.key));
  if (layer >= static_cast<int64_t>(values.size())) {
    return place.config.Error(place.key, "an item for every layer",
                              absl::StrCat(values.size(), " items"));
  }
  const int64_t value = values[static_cast<size_t>(layer)];
  if (value < min) {
    return place.config.Error(place.key, absl::StrCat("integers >= ", min),
                              absl::StrCat(value));
  }
  return value;
}

absl::StatusOr<std::optional<double>> FamilyConfig::OptionalDouble(
    absl::string_view key) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  MOE_ASSIGN_OR_RETURN(const std::optional<double> value,
                       place.config.OptionalDouble(place.key));
  if (value || place.config.IsNull(place.key)) return value;
  return Otherwise<double>(*place.rule);
}

absl::StatusOr<std::optional<std::string>> FamilyConfig::OptionalString(
    absl::string_view key) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  MOE_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                       place.config.OptionalString(place.key));
  if (value || place.config.IsNull(place.key)) return value;
  const auto otherwise = Otherwise<absl::string_view>(*place.rule);
  if (!otherwise) return std::optional<std::string>();
  return std::optional<std::string>(*otherwise);
}

absl::StatusOr<std::vector<int64_t>> FamilyConfig::Ints(
    absl::string_view key) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  return place.config.Ints(place.key);
}

absl::StatusOr<std::vector<std::string>> FamilyConfig::Strings(
    absl::string_view key) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  return place.config.Strings(place.key);
}

template <typename T>
absl::StatusOr<T> FamilyConfig::Present(absl::StatusOr<std::optional<T>> value,
                                        absl::string_view key,
                                        absl::string_view want) const {
  if (!value.ok()) return std::move(value).status();
  if (!value->has_value()) return Error(key, want, "nothing");
  return **std::move(value);
}

absl::StatusOr<int64_t> FamilyConfig::Int(absl::string_view key, int64_t layer,
                                          int64_t min) const {
  return Present(OptionalInt(key, layer, min), key,
                 absl::StrCat("an integer >= ", min));
}

absl::StatusOr<std::string> FamilyConfig::String(absl::string_view key) const {
  return Present(OptionalString(key), key, "a string");
}

absl::StatusOr<double> FamilyConfig::Double(absl::string_view key) const {
  return Present(OptionalDouble(key), key, "a number");
}

absl::StatusOr<bool> FamilyConfig::Bool(const Flag& flag) const {
  if (flag.key.empty()) return flag.constant;
  MOE_ASSIGN_OR_RETURN(const Place place, Find(flag.key));
  MOE_ASSIGN_OR_RETURN(const std::optional<bool> value,
                       place.config.OptionalBool(place.key));
  if (value) return *value;
  return Present(
      absl::StatusOr<std::optional<bool>>(Otherwise<bool>(*place.rule)),
      flag.key, "true or false");
}

bool FamilyConfig::Has(absl::string_view key) const {
  const absl::StatusOr<Place> place = Find(key);
  return place.ok() && place->config.Has(place->key);
}

bool FamilyConfig::IsListed(absl::string_view spelling) const {
  return std::any_of(
      keys_.begin(), keys_.end(), [spelling](const RuleKey& rule) {
        const std::vector<absl::string_view> all = Spellings(rule);
        return std::find(all.begin(), all.end(), spelling) != all.end();
      });
}

absl::Status FamilyConfig::Error(absl::string_view key, absl::string_view want,
                                 absl::string_view got) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  return place.config.Error(place.key, want, got);
}

}  // namespace moe
