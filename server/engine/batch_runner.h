// Runs one batch at a time: rows in, the layer, rows out. Holds all that a
// batch in flight has of its own.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/matrix_view.h"
#include "experts/expert_workspace.h"
#include "router/ffn_layer.h"
#include "server/common/steady_time.h"
#include "server/engine/batch_queue.h"
#include "server/engine/engine_request.h"
#include "server/metrics/metrics.h"

namespace moe {

// Counts a request that nobody waits for. status: CANCELLED or
// DEADLINE_EXCEEDED.
void CountUnwanted(const absl::Status& status, Metrics& metrics);

// Thread-compatible: the two halves of a batch after each other, on one thread.
// Nothing is allocated once the buffers have grown to the largest batch.
class BatchRunner {
 public:
  // All must outlive the runner.
  BatchRunner(Executor* executor, const Kernels& kernels, ComputeTurn* turn,
              const SteadyClock* clock, Metrics* metrics);
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  // Lets the requests write their rows, and runs the layer.
  // Requires: a batch with slices.
  void Compute(const Batch& batch);
  // Lets the requests take their rows, and counts the batch.
  void Encode(const Batch& batch);

 private:
  // The life of a part of a request, from the batch that takes it to its rows
  // in the response. row: the first one of the slice in the batch.
  void BeginPart(EngineRequest& request) const;
  void EndPart(const BatchSlice& slice, int64_t row);
  void DecodeBatch(const Batch& batch, Matrix input, MatrixView<int32_t> ids,
                   Matrix weights);
  absl::Status RunLayer(const Batch& batch);
  // Whether the experts of rows of the batch have all been run.
  absl::Status CheckExperts(int64_t first, int64_t count) const;
  // Pairs of rows of the batch whose experts were left out.
  int64_t LeftOut(int64_t first, int64_t count) const;
  // The rows of a slice in what has been computed.
  EngineResult ResultOf(int64_t first, int64_t count) const;
  void Count(const Batch& batch, SteadyTime end) const;

  const SteadyClock& clock_;
  Metrics& metrics_;
  ExpertWorkspace experts_;
  LayerWorkspace workspace_;
  AlignedBuffer<float> input_;
  AlignedBuffer<float> output_;
  AlignedBuffer<int32_t> given_ids_;
  AlignedBuffer<float> given_weights_;
  // About the batch that runs.
  absl::Status computed_;
  EngineResult result_;
  ForwardStats stats_;
  SteadyTime start_;
  SteadyTime decoded_;
  SteadyTime encode_start_;
};

}  // namespace moe
