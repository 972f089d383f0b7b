// A Hugging Face checkpoint folder: config.json and the tensors of
// model.safetensors, or of the shards that model.safetensors.index.json lists.
//
// Thread-safe once opened.

#pragma once

#include <cstdint>
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
  // Reads config.json, the index, and the header of every shard; no tensor
  // data. With both a model.safetensors and an index, the single file wins, as
  // in the transformers library. Files that the index doesn't name are left
  // alone.
  //
  // Errors: NOT_FOUND for a missing folder, config, weights or shard; DATA_LOSS
  // if the index places a tensor in a file that doesn't hold it, or two files
  // hold the same tensor; else those of Config::Open, ParseQuantization,
  // ParseShardIndex and SafetensorsFile::Open.
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  const Config& config() const { return config_; }
  const Quantization& quantization() const { return quantization_; }

  // All tensors, in the order of the files and of their data.
  absl::Span<const TensorInfo* const> tensors() const { return tensors_; }
  // Of all tensor data.
  int64_t total_bytes() const { return total_bytes_; }

  // Null if there is none of that name.
  const TensorInfo* Find(absl::string_view name) const;
  bool Contains(absl::string_view name) const { return Find(name) != nullptr; }

  // The tensor `name`, of one of `dtypes` and of `shape`, where -1 stands for
  // any extent. It is about to be read: the file must not have shrunk.
  //
  // Errors, naming file, tensor, wanted and got: NOT_FOUND if there is none;
  // INVALID_ARGUMENT for another shape; UNIMPLEMENTED for another dtype;
  // DATA_LOSS if the file has changed its size.
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
    const TensorInfo* tensor;
    const SafetensorsFile* file;
  };

  Checkpoint(Config config, Quantization quantization, std::string source,
             std::vector<SafetensorsFile> files);
  // Fills tensors_ and by_name_ from files_.
  absl::Status IndexTensors();

  Config config_;
  Quantization quantization_;
  std::string source_;  // the file that says which tensors there are
  std::vector<SafetensorsFile> files_;
  std::vector<const TensorInfo*> tensors_;
  absl::flat_hash_map<absl::string_view, Entry> by_name_;
  int64_t total_bytes_ = 0;
};

}  // namespace moe
