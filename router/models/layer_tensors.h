// Which tensors of a checkpoint a layer is made of, and that there are no
// others: a tensor under an FFN that nothing reads is a part of the model that
// would silently be left out.
//
// Thread-safe: pure functions.

#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "experts/checkpoint/checkpoint.h"
#include "router/models/family.h"
#include "router/models/model_spec.h"

namespace moe {

// Whether all tensors of the layer's FFN are read.
//
// prefix: what the names of the layer's tensors start with.
// Errors: UNIMPLEMENTED naming the first that nothing reads.
absl::Status CheckAllRead(const Checkpoint& checkpoint, const Family& family,
                          absl::string_view prefix, const LayerSpec& layer);

// Whether a layer that has no FFN by its config has none in the files.
//
// Errors: INVALID_ARGUMENT naming a tensor.
absl::Status CheckNoFfn(const Checkpoint& checkpoint, const Family& family,
                        absl::string_view prefix);

}  // namespace moe
