// A Hugging Face checkpoint folder: config.json and the tensors of
// model.safetensors, or of the shards that model.safetensors.index.json lists.
//
// The index says which file a tensor is in; other copies of it don't matter,
// and neither does what it says of tensors that nobody asks for. Not every
// shard need be there: a tensor whose file is missing is known by its name, and
// an error once it is required. So a server of some layers needs no more than
// the files that these are in.
//
// Thread-safe once opened.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/base/dtype.h"
#include "experts/checkpoint/config.h"
#include "experts/checkpoint/quantization.h"
#include "experts/checkpoint/safetensors.h"

namespace moe {

class Checkpoint {
 public:
  // Reads config.json, the index, and the header of every shard that is there;
  // no tensor data. With both a model.safetensors and an index, the single file
  // wins, as in the transformers library. Files that the index doesn't name are
  // left alone.
  //
  // Errors: NOT_FOUND for a missing folder, config or weights, or if none of
  // the shards is there; DATA_LOSS if a tensor that the index doesn't place
  // is in two of the files; else those of Config::Open, ParseQuantization,
  // ParseShardIndex and SafetensorsFile::Open.
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  const Config& config() const { return config_; }
  const Quantization& quantization() const { return quantization_; }

  // All tensors whose files are there, in the order of the files and of their
  // data.
  absl::Span<const TensorInfo* const> tensors() const { return tensors_; }
  // The size of all tensor data in them.
  int64_t total_bytes() const { return total_bytes_; }
  // The names of all tensors, ascending, also of those whose files are missing.
  absl::Span<const absl::string_view> names() const { return names_; }

  // Null if there is none of that name, or its file is missing.
  const TensorInfo* Find(absl::string_view name) const;
  // Whether there is one of that name, be its file there or not.
  bool Contains(absl::string_view name) const {
    return by_name_.contains(name);
  }
  // Errors: NOT_FOUND naming file and tensor if the file with the tensor is
  // missing. OK for a tensor that there isn't.
  absl::Status CheckPresent(absl::string_view name) const;

  // The tensor `name`, of one of `dtypes` and of `shape`, where -1 stands for
  // any extent. It is about to be read: the file must not have shrunk.
  //
  // Errors, naming file, tensor, wanted and got: NOT_FOUND if there is none, or
  // its file is missing; DATA_LOSS if the index places it in a file that
  // doesn't hold it, or the file has changed its size; INVALID_ARGUMENT for
  // another shape; UNIMPLEMENTED for another dtype.
  absl::StatusOr<const TensorInfo*> Require(
      absl::string_view name, absl::Span<const DType> dtypes,
      absl::Span<const int64_t> shape) const;

  // Where a tensor lies, for messages: `FILE: tensor "NAME"`.
  std::string Where(const TensorInfo& tensor) const;

  // Gives back the memory behind a part of the data once it has been copied
  // (see MappedFile::DropPages).
  //
  // Requires: `part` lies within the data of this checkpoint.
  void DropPages(absl::Span<const uint8_t> part) const;

 private:
  struct Entry {
    const TensorInfo* tensor;     // null: the file is missing
    const SafetensorsFile* file;  // null: likewise
  };
  using ShardOf = std::map<std::string, std::string>;

  Checkpoint(Config config, Quantization quantization, std::string source,
             std::vector<SafetensorsFile> files, ShardOf shard_of);
  // Fills tensors_, names_ and by_name_ from files_ and shard_of_.
  absl::Status IndexTensors();

  Config config_;
  Quantization quantization_;
  std::string source_;  // the file that says which tensors there are
  std::vector<SafetensorsFile> files_;
  ShardOf shard_of_;  // the index, or empty
  std::vector<const TensorInfo*> tensors_;
  std::vector<absl::string_view> names_;
  absl::flat_hash_map<absl::string_view, Entry> by_name_;
  int64_t total_bytes_ = 0;
};

}  // namespace moe
