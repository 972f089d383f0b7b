// Which shards hold which experts.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/common/index_set.h"

namespace moe {

// A placement file (proto/moe/v1/placement.proto) that has been read and
// checked: names, targets, ranges. Whether it fits a model is asked by layer.
//
// Thread-safe: immutable. Its questions walk through all that is placed on a
// shard: they are for loading models, not for requests.
class Placement {
 public:
  struct Shard {
    std::string name;
    std::vector<std::string> targets;  // gRPC targets of its replicas
  };

  // Errors: INVALID_ARGUMENT naming shard, field, wanted and got; or where it
  // is not JSON of a placement, which includes fields that there are not.
  static absl::StatusOr<Placement> Parse(absl::string_view json);

  // Errors: as Parse; NOT_FOUND; INVALID_ARGUMENT for a file of more than
  // 64 MiB. All begin with "--shards: ".
  static absl::StatusOr<Placement> ReadFile(const std::string& path);

  // In the order of the file; "a shard" below is an index of it.
  absl::Span<const Shard> shards() const { return shards_; }
  // Absent if no shard has this name.
  std::optional<int> Find(absl::string_view name) const;

  // The shards that hold an expert, ascending.
  std::vector<int> ShardsOf(absl::string_view model, int layer,
                            int expert) const;

  // The experts of a routed layer that a shard holds, ascending; those that the
  // layer has not are left out.
  // Requires: 0 <= shard < shards().size().
  std::vector<int32_t> ExpertsOf(int shard, absl::string_view model, int layer,
                                 int num_experts) const;

  // Whether every expert of a routed layer is on some shard or in
  // `local_experts`, and no others are placed.
  // Errors: INVALID_ARGUMENT with the first experts for which that is not so.
  absl::Status CheckCover(absl::string_view model, int layer, int num_experts,
                          absl::Span<const int32_t> local_experts) const;

 private:
  struct Entry {
    std::string model;                // empty = every model
    std::optional<IndexSet> layers;   // absent = all routed layers
    std::optional<IndexSet> experts;  // absent = all of the layer

    bool Covers(absl::string_view of_model, int layer) const;
  };

  Placement() = default;

  std::vector<Shard> shards_;
  std::vector<std::vector<Entry>> entries_;  // [shards]
};

}  // namespace moe
