// Models as the Open Inference Protocol describes them.
//
// Thread-safe: pure functions.

#pragma once

#include "absl/strings/string_view.h"
#include "inference/inference.pb.h"
#include "server/open_inference/infer_request.h"
#include "server/rpc/service_limits.h"

namespace moe {

// name: the one that the caller used.
void DescribeMetadata(const InferTarget& target, absl::string_view name,
                      const ServiceLimits& limits,
                      inference::ModelMetadataResponse* metadata);
void DescribeConfig(const InferTarget& target, absl::string_view name,
                    const ServiceLimits& limits,
                    inference::ModelConfig* config);
// The statistics of a layer, or of all layers of the model together.
void DescribeStatistics(const InferTarget& target, absl::string_view name,
                        inference::ModelStatistics* statistics);

}  // namespace moe
