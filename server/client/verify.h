// Compares a server's answers with recorded vectors.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/client/connection.h"

namespace moe {

// Runs every layer that a vectors file holds, and prints a line per layer with
// the largest errors and PASS or FAIL, and one at the end.
//
// The file holds, for layer L, layers.L.hidden_states and layers.L.output, and
// for routed layers router_logits, topk_ids, topk_weights, tie (1: the choice
// of this row is between equals, any of them is right). Names may start with
// encoder. or decoder.: those go to the models MODEL.encoder and MODEL.decoder.
//
// Tolerances, as for float32: logits 1e-5 (1 + max|row|); weights 1e-5 relative
// + 1e-6; output 2e-5 max|row| + 1e-6; ids exact. `output_tolerance` replaces
// the 2e-5 where it is positive, for weight formats that round.
//
// Returns whether all passed. Errors: those of reading the file; of the server.
absl::StatusOr<bool> Verify(const Connection& connection,
                            const std::string& model,
                            const std::string& vectors_file,
                            double output_tolerance);

}  // namespace moe
