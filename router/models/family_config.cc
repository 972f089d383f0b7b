#include "router/models/family_config.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "experts/base/status_macros.h"

namespace moe {

absl::StatusOr<FamilyConfig::Place> FamilyConfig::Find(
    absl::string_view key) const {
  std::optional<Place> first;
  for (const absl::string_view path : absl::StrSplit(key, '|')) {
    std::vector<std::string> parts = absl::StrSplit(path, '.');
    Place place{config_, parts.back()};
    parts.pop_back();
    bool nested = true;
    for (const std::string& part : parts) {
      MOE_ASSIGN_OR_RETURN(const std::optional<Config> section,
                           place.config.OptionalSection(part));
      nested = section.has_value();
      if (!nested) {
        place = {place.config, std::string(path)};
        break;
      }
      place.config = *section;
    }
    if (nested && place.config.Has(place.key)) return place;
    if (!first) first = std::move(place);
  }
  return *first;
}

absl::StatusOr<std::optional<int64_t>> FamilyConfig::OptionalInt(
    absl::string_view key, int64_t layer, int64_t min) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  if (!place.config.IsList(place.key)) {
    return place.config.OptionalInt(place.key, min);
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
  return place.config.OptionalDouble(place.key);
}

absl::StatusOr<std::optional<std::string>> FamilyConfig::OptionalString(
    absl::string_view key) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  return place.config.OptionalString(place.key);
}

absl::StatusOr<std::vector<int64_t>> FamilyConfig::Ints(
    absl::string_view key) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  return place.config.Ints(place.key);
}

absl::StatusOr<int64_t> FamilyConfig::Int(absl::string_view key, int64_t layer,
                                          int64_t min) const {
  MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                       OptionalInt(key, layer, min));
  if (value) return *value;
  return Error(key, absl::StrCat("an integer >= ", min), "nothing");
}

absl::StatusOr<int64_t> FamilyConfig::IntOr(absl::string_view key,
                                            int64_t otherwise, int64_t layer,
                                            int64_t min) const {
  MOE_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                       OptionalInt(key, layer, min));
  return value.value_or(otherwise);
}

absl::StatusOr<std::string> FamilyConfig::StringOr(
    absl::string_view key, absl::string_view otherwise) const {
  MOE_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                       OptionalString(key));
  return value.value_or(std::string(otherwise));
}

absl::StatusOr<double> FamilyConfig::DoubleOr(absl::string_view key,
                                              double otherwise) const {
  MOE_ASSIGN_OR_RETURN(const std::optional<double> value, OptionalDouble(key));
  return value.value_or(otherwise);
}

absl::StatusOr<bool> FamilyConfig::Bool(const Flag& flag) const {
  if (flag.key.empty()) return flag.otherwise;
  MOE_ASSIGN_OR_RETURN(const Place place, Find(flag.key));
  return place.config.BoolOr(place.key, flag.otherwise);
}

absl::Status FamilyConfig::Expect(absl::string_view key,
                                  absl::string_view value) const {
  MOE_ASSIGN_OR_RETURN(const std::string got, StringOr(key, value));
  if (got == value) return absl::OkStatus();
  return absl::UnimplementedError(
      Error(key, absl::StrCat("\"", value, "\""), absl::StrCat("\"", got, "\""))
          .message());
}

absl::Status FamilyConfig::Expect(const Flag& flag) const {
  MOE_ASSIGN_OR_RETURN(const bool got, Bool(flag));
  if (got == flag.otherwise) return absl::OkStatus();
  return absl::UnimplementedError(
      Error(flag.key, flag.otherwise ? "true" : "false", got ? "true" : "false")
          .message());
}

bool FamilyConfig::Has(absl::string_view key) const {
  const absl::StatusOr<Place> place = Find(key);
  return place.ok() && place->config.Has(place->key);
}

absl::Status FamilyConfig::Error(absl::string_view key, absl::string_view want,
                                 absl::string_view got) const {
  MOE_ASSIGN_OR_RETURN(const Place place, Find(key));
  return place.config.Error(place.key, want, got);
}

}  // namespace moe
