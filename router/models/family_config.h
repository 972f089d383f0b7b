// A model's config.json as the table of families asks for it.
//
// A key is written as in the table: dots lead into nested objects
// ("ffn_config.moe_top_k"), and "a|b" means a or, where that is absent, b. Some
// models give one value for all layers, others a list with one per layer: where
// a layer is named, either will do. What an absent key stands for is part of
// the table, too (RuleKey), and so are other spellings of a key.
//
// Thread-safe: immutable.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/checkpoint/config.h"

namespace moe {

// A value of a key; monostate: nothing.
using KeyValue =
    std::variant<std::monostate, bool, int64_t, double, absl::string_view>;

enum class KeyUse : uint8_t {
  kShape,   // a number of layers or an extent, which the tensors confirm
  kRule,    // what is computed follows it
  kNeeded,  // likewise, and must be there: a guess that no tensor confirms
  kHeld,    // one value is computed, which is `otherwise`: others are refused
};

// A key that says what a family computes.
struct RuleKey {
  absl::string_view key;  // "a=b": b is another spelling of a
  KeyUse use = KeyUse::kRule;
  // What the reference implementation takes for an absent key; nothing: the key
  // must be there, or has no value.
  KeyValue otherwise = {};
  // Whether null stands for nothing rather than being a mistake.
  bool nullable = false;
};

// A key, or without one a constant.
struct Flag {
  absl::string_view key;
  bool constant = false;
};

class FamilyConfig {
 public:
  // keys: all that are going to be asked for; they must outlive the object.
  FamilyConfig(Config config, absl::Span<const RuleKey> keys)
      : config_(std::move(config)), keys_(keys) {}

  const Config& config() const { return config_; }

  // Errors: INVALID_ARGUMENT naming both if two spellings of a key have
  // different values, or a key is null that has no such value; UNIMPLEMENTED
  // naming a held key, wanted and got.
  absl::Status Check() const;

  // The value, that which stands for an absent key, or nothing. Errors, all
  // four: INVALID_ARGUMENT naming the key, wanted and got. Requires, of all
  // here: `key` is listed.
  absl::StatusOr<std::optional<int64_t>> OptionalInt(absl::string_view key,
                                                     int64_t layer = 0,
                                                     int64_t min = 0) const;
  absl::StatusOr<std::optional<double>> OptionalDouble(
      absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> OptionalString(
      absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(absl::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view key) const;

  // As above, with INVALID_ARGUMENT for nothing.
  absl::StatusOr<int64_t> Int(absl::string_view key, int64_t layer = 0,
                              int64_t min = 1) const;
  absl::StatusOr<std::string> String(absl::string_view key) const;
  absl::StatusOr<double> Double(absl::string_view key) const;
  absl::StatusOr<bool> Bool(const Flag& flag) const;

  // Whether one of the alternatives is there.
  bool Has(absl::string_view key) const;
  // Whether a key of the file, in any spelling, is listed.
  bool IsListed(absl::string_view spelling) const;

  // "config.json: KEY: want WANT, got GOT".
  absl::Status Error(absl::string_view key, absl::string_view want,
                     absl::string_view got) const;

 private:
  // The object that holds the first alternative that is there, its name in it,
  // and what the table says of it; where none is there, those of the first.
  struct Place {
    Config config;
    std::string key;
    const RuleKey* rule;
  };
  const RuleKey& Rule(absl::string_view key) const;
  absl::StatusOr<Place> Follow(absl::string_view path) const;
  absl::StatusOr<Place> Find(absl::string_view key) const;

  template <typename T>
  absl::StatusOr<T> Present(absl::StatusOr<std::optional<T>> value,
                            absl::string_view key,
                            absl::string_view want) const;

  Config config_;
  absl::Span<const RuleKey> keys_;
};

}  // namespace moe
