// Typed access to a model's config.json; the JSON library stays inside.
//
// A value is asked for by its key and the type it must have. A key whose value
// is null counts as absent. Errors name file, key (dotted from the top), wanted
// and got: `config.json: text_config.num_experts: want an integer >= 1, got
// "two"`.
//
// Thread-safe: immutable; copies share the parsed document.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

struct ConfigDocument;  // The parsed object; defined where the library is.

class Config {
 public:
  // Reads a file of at most 16 MiB.
  //
  // Errors: those of MappedFile::Open; DATA_LOSS if it is too large, not JSON,
  // not an object at the top, or has a key twice.
  static absl::StatusOr<Config> Open(const std::string& path);
  // As Open, from memory; `file` is the name that errors carry. Python's NaN,
  // Infinity and -Infinity, which real files have, read as null.
  static absl::StatusOr<Config> Parse(absl::string_view text,
                                      absl::string_view file = "config.json");

  // Whether the key is there, and not null.
  bool Has(absl::string_view key) const;
  // All keys, ascending, and whether there is none.
  std::vector<std::string> Keys() const;
  bool empty() const;
  // Whether the key is there with null for its value.
  bool IsNull(absl::string_view key) const;
  // The value in a message: short, on one line; "nothing" if absent.
  std::string Text(absl::string_view key) const;
  // Whether both keys have equal values, or neither is there.
  bool SameValue(absl::string_view a, absl::string_view b) const;
  // Whether its value is a list: some keys hold one value or one per layer.
  bool IsList(absl::string_view key) const;

  // Three forms each. Int(key): must be there. IntOr(key, otherwise): absent
  // gives `otherwise`. OptionalInt(key): absent gives nullopt.
  //
  // A whole number that is written 8.0 is an integer.
  //
  // Errors: INVALID_ARGUMENT if the value has another type or is below `min`
  // (`otherwise` is not checked); for the first form also if it is absent.
  absl::StatusOr<int64_t> Int(absl::string_view key, int64_t min = 0) const;
  absl::StatusOr<int64_t> IntOr(absl::string_view key, int64_t otherwise,
                                int64_t min = 0) const;
  absl::StatusOr<std::optional<int64_t>> OptionalInt(absl::string_view key,
                                                     int64_t min = 0) const;
  // Whole numbers count as numbers, too.
  absl::StatusOr<double> Double(absl::string_view key) const;
  absl::StatusOr<double> DoubleOr(absl::string_view key,
                                  double otherwise) const;
  absl::StatusOr<std::optional<double>> OptionalDouble(
      absl::string_view key) const;

  absl::StatusOr<bool> Bool(absl::string_view key) const;
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool otherwise) const;
  absl::StatusOr<std::optional<bool>> OptionalBool(absl::string_view key) const;

  absl::StatusOr<std::string> String(absl::string_view key) const;
  absl::StatusOr<std::string> StringOr(absl::string_view key,
                                       absl::string_view otherwise) const;
  absl::StatusOr<std::optional<std::string>> OptionalString(
      absl::string_view key) const;

  // Lists; absent gives an empty one. Errors: INVALID_ARGUMENT naming the first
  // item of another type.
  absl::StatusOr<std::vector<int64_t>> Ints(absl::string_view key) const;
  absl::StatusOr<std::vector<bool>> Bools(absl::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view key) const;

  // The nested object under `key`, as a Config whose errors go on naming the
  // whole path.
  absl::StatusOr<Config> Section(absl::string_view key) const;
  absl::StatusOr<std::optional<Config>> OptionalSection(
      absl::string_view key) const;

  // An INVALID_ARGUMENT of the form above, for rules that span several keys.
  absl::Status Error(absl::string_view key, absl::string_view want,
                     absl::string_view got) const;

 private:
  explicit Config(std::shared_ptr<const ConfigDocument> document)
      : document_(std::move(document)) {}

  std::shared_ptr<const ConfigDocument> document_;
};

}  // namespace moe
