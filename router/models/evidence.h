// What a config.json says of a model besides its model_type, held against what
// the table of families makes of it. Files are copied, renamed and edited:
// where two statements disagree, nobody can know which is right, and wrong
// numbers are worse than none.
//
// Thread-safe: pure functions.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "experts/checkpoint/config.h"
#include "router/models/family.h"
#include "router/models/family_config.h"
#include "router/models/model_spec.h"

namespace moe {

// The entries of the table for the model that `config` describes: one, or one
// for each side of an encoder-decoder model. `top` is the whole config.json;
// `config` may be an object in it.
//
// Errors: UNIMPLEMENTED for a model_type that is not supported, naming those
// that are, and for a class in `architectures` or `auto_map` that is not one of
// the family's, naming both.
absl::StatusOr<std::vector<const Family*>> ChooseFamilies(const Config& top,
                                                          const Config& config);

// Whether keys that state a rule in the config of some family, and that this
// family does not list, state the one that `layer` follows.
//
// Errors: UNIMPLEMENTED naming the key, wanted and got.
absl::Status CheckStatedRules(const FamilyConfig& config,
                              const LayerSpec& layer);

}  // namespace moe
