// model.safetensors.index.json: which file of a sharded checkpoint holds which
// tensor.
//
// Thread-safe: a pure function.

#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

// Tensor name -> file name, from the object `weight_map`. The other entries are
// advice (`metadata.total_size` is wrong in published files) and not read.
//
// A file name is that of a file in the same folder: anything with a '/' in it,
// "." and ".." are refused, since a checkpoint that was downloaded must not
// make us open files elsewhere.
//
// Errors: DATA_LOSS naming `file`, tensor, wanted and got.
absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(
    absl::string_view text, absl::string_view file);

}  // namespace moe
