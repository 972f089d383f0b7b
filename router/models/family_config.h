// A model's config.json as the table of families asks for it.
//
// A key is written as in the table: dots lead into nested objects
// ("ffn_config.moe_top_k"), and "a|b" means a or, where that is absent, b. Some
// models give one value for all layers, others a list with one per layer: where
// a layer is named, either will do.
//
// Thread-safe: immutable.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "experts/checkpoint/config.h"

namespace moe {

// A key with the value that stands for an absent one. Without a key, always
// that value.
struct Flag {
  absl::string_view key;
  bool otherwise = false;
};

class FamilyConfig {
 public:
  explicit FamilyConfig(Config config) : config_(std::move(config)) {}

  // Errors, all four: INVALID_ARGUMENT naming the key, wanted and got.
  absl::StatusOr<std::optional<int64_t>> OptionalInt(absl::string_view key,
                                                     int64_t layer = 0,
                                                     int64_t min = 0) const;
  absl::StatusOr<std::optional<double>> OptionalDouble(
      absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> OptionalString(
      absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(absl::string_view key) const;

  // As above, with INVALID_ARGUMENT for an absent key, or a value for it.
  absl::StatusOr<int64_t> Int(absl::string_view key, int64_t layer = 0,
                              int64_t min = 1) const;
  absl::StatusOr<int64_t> IntOr(absl::string_view key, int64_t otherwise,
                                int64_t layer = 0, int64_t min = 0) const;
  absl::StatusOr<std::string> StringOr(absl::string_view key,
                                       absl::string_view otherwise) const;
  absl::StatusOr<double> DoubleOr(absl::string_view key,
                                  double otherwise) const;
  absl::StatusOr<bool> Bool(const Flag& flag) const;

  // OK if `key` is absent or has this value: for keys that other readers of the
  // family's files obey and the reference implementation has fixed.
  // Errors: UNIMPLEMENTED naming the key, wanted and got.
  absl::Status Expect(absl::string_view key, absl::string_view value) const;
  absl::Status Expect(const Flag& flag) const;

  // Whether one of the alternatives is there.
  bool Has(absl::string_view key) const;

  // "config.json: KEY: want WANT, got GOT".
  absl::Status Error(absl::string_view key, absl::string_view want,
                     absl::string_view got) const;

 private:
  // The object that holds the first alternative that is there, and its name in
  // it; where none is there, those of the first.
  struct Place {
    Config config;
    std::string key;
  };
  absl::StatusOr<Place> Find(absl::string_view key) const;

  Config config_;
};

}  // namespace moe
