// Runs every expert of a model once, so that the first caller finds its weights
// in memory and every buffer grown.

#pragma once

#include <memory>

#include "absl/status/status.h"
#include "server/engine/engine.h"
#include "server/engine/model_registry.h"

namespace moe {

// Blocks until done. The work goes through the engine like any other, but is
// not counted.
// Errors: those of the expert shards; UNAVAILABLE when the engine drains.
absl::Status WarmUp(const std::shared_ptr<const ServedModel>& model,
                    Engine& engine);

}  // namespace moe
