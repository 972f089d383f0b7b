// The experts of one layer in this process' memory. On a machine with several
// NUMA nodes each holds a slice of every expert, as large as its part of the
// threads, and its threads compute that slice: all nodes' memory is read at
// once, whichever experts a batch needs.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "experts/base/aligned_buffer.h"
#include "experts/base/weight_format.h"
#include "experts/executor.h"
#include "experts/expert_shard.h"
#include "experts/kernels/run_experts.h"
#include "experts/stored_expert.h"

namespace moe {

class LocalExpertShard final : public ExpertShard {
 public:
  // Packs the weights of all experts.
  //
  // experts:  needed during the call only. Requires: shapes that fit `spec`.
  // executor: does it; needed during the call only.
  // node_threads: [nodes] of the executor that the shard will run on, each node
  //           of which gets a slice; empty = as `executor`. Where that has
  //           other nodes, slices may come to lie anywhere.
  static std::unique_ptr<LocalExpertShard> Load(
      const ExpertSpec& spec, absl::Span<const StoredExpert> experts,
      WeightFormat format, Executor& executor,
      absl::Span<const int> node_threads = {});

  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override { return num_experts_; }
  WeightsBytes weights() const override;
  int64_t weights_bytes() const { return weights().total(); }
  // The memory of the packed weights: of each NUMA node.
  absl::Span<const AlignedBuffer<uint8_t>> packed() const { return weights_; }

  absl::Status Forward(const ExpertBatch& batch, ExpertWorkspace& workspace,
                       Matrix out, ExpertFailures& failures) const override;

 private:
  LocalExpertShard(const ExpertSpec& spec, int64_t num_experts)
      : spec_(spec), num_experts_(num_experts) {}

  // Matrices whose panels alternate in PackedExpert::up.
  int64_t up_matrices() const { return spec_.gated ? 2 : 1; }
  // Decides the layouts, and where in its node's buffer each slice lies.
  void PlaceWeights(absl::Span<const StoredExpert> experts, WeightFormat format,
                    absl::Span<const int> node_threads);
  void PackWeights(absl::Span<const StoredExpert> experts, Executor& executor);
  void PackBiases(absl::Span<const StoredExpert> experts);

  const ExpertSpec spec_;
  const int64_t num_experts_;
  std::vector<AlignedBuffer<uint8_t>> weights_;  // [nodes]
  AlignedBuffer<float> biases_;
  std::vector<PackedExpert> slices_;  // [nodes][experts], into the buffers
};

}  // namespace moe
