#include "experts/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "experts/base/check.h"
#include "experts/base/status_macros.h"
#include "experts/checkpoint/mapped_file.h"
#include "experts/checkpoint/shard_index.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

constexpr char kConfig[] = "config.json";
constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";

// A folder without weights, in words that help.
absl::Status NoWeights(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = BaseName(entry.path().string());
    if (absl::StartsWith(name, "model-") &&
        absl::EndsWith(name, ".safetensors")) {
      return absl::NotFoundError(absl::StrCat(
          kIndex, ": not found, but shards such as ", Quote(name),
          ": want the index, too, which says what is in which of them"));
    }
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pth" || extension == ".gguf") {
      return absl::NotFoundError(
          absl::StrCat(kSingle, ": not found, nor ", kIndex, ", but a ",
                       extension, " file: convert the model to safetensors"));
    }
  }
  return absl::NotFoundError(
      absl::StrCat(kSingle, ": not found, nor ", kIndex));
}

bool Matches(absl::Span<const int64_t> shape, absl::Span<const int64_t> want) {
  return std::equal(shape.begin(), shape.end(), want.begin(), want.end(),
                    [](int64_t a, int64_t b) { return b < 0 || a == b; });
}

}  // namespace

Checkpoint::Checkpoint(Config config, Quantization quantization,
                       std::string source, std::vector<SafetensorsFile> files,
                       ShardOf shard_of)
    : config_(std::move(config)),
      quantization_(std::move(quantization)),
      source_(std::move(source)),
      files_(std::move(files)),
      shard_of_(std::move(shard_of)) {}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  const auto path = [&folder](absl::string_view file) {
    return absl::StrCat(folder, "/", file);
  };
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return absl::NotFoundError(
        absl::StrCat(Quote(folder), ": want a folder that holds a model"));
  }
  MOE_ASSIGN_OR_RETURN(Config config, Config::Open(path(kConfig)));
  MOE_ASSIGN_OR_RETURN(const Quantization quantization,
                       ParseQuantization(config));

  ShardOf shard_of;
  std::set<std::string> names;
  std::string source = kSingle;
  if (std::filesystem::exists(path(kSingle), ignored)) {
    names.insert(kSingle);
  } else if (std::filesystem::exists(path(kIndex), ignored)) {
    source = kIndex;
    MOE_ASSIGN_OR_RETURN(const MappedFile index,
                         MappedFile::Open(path(kIndex)));
    const auto bytes = index.bytes();
    MOE_ASSIGN_OR_RETURN(
        shard_of,
        ParseShardIndex(
            absl::string_view(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size()),
            kIndex));
    for (const auto& [tensor, shard] : shard_of) names.insert(shard);
  } else {
    return NoWeights(folder);
  }

  std::vector<SafetensorsFile> files;
  absl::Status missing;
  for (const std::string& name : names) {
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path(name));
    if (absl::IsNotFound(file.status())) {
      missing.Update(file.status());
      continue;
    }
    MOE_RETURN_IF_ERROR(file.status());
    files.push_back(*std::move(file));
  }
  if (files.empty() && !missing.ok()) return missing;
  Checkpoint checkpoint(std::move(config), quantization, std::move(source),
                        std::move(files), std::move(shard_of));
  MOE_RETURN_IF_ERROR(checkpoint.IndexTensors());
  return checkpoint;
}

absl::Status Checkpoint::IndexTensors() {
  const auto is_placed = [this](const SafetensorsFile& file,
                                const std::string& tensor) {
    const auto placed = shard_of_.find(tensor);
    return placed != shard_of_.end() && placed->second == file.name();
  };
  // The index decides which of several copies counts.
  std::vector<std::pair<const TensorInfo*, const SafetensorsFile*>> copies;
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& tensor : file.tensors()) {
      const Entry here = {&tensor, &file};
      const auto [entry, is_new] = by_name_.try_emplace(tensor.name, here);
      if (is_new) continue;
      copies.emplace_back(&tensor, &file);
      if (is_placed(file, tensor.name)) entry->second = here;
    }
  }
  for (const auto& [tensor, file] : copies) {
    const Entry& chosen = by_name_.find(tensor->name)->second;
    if (!is_placed(*chosen.file, tensor->name)) {
      return absl::DataLossError(absl::StrCat(file->name(), ": tensor ",
                                              Quote(tensor->name), ": is in ",
                                              chosen.file->name(), ", too"));
    }
  }

  std::set<absl::string_view> present;
  for (const SafetensorsFile& file : files_) {
    present.insert(file.name());
    for (const TensorInfo& tensor : file.tensors()) {
      if (by_name_.find(tensor.name)->second.tensor != &tensor) continue;
      tensors_.push_back(&tensor);
      total_bytes_ += static_cast<int64_t>(tensor.bytes.size());
    }
  }
  for (const auto& [tensor, shard] : shard_of_) {
    if (present.contains(shard)) continue;
    by_name_.try_emplace(tensor, Entry{nullptr, nullptr});
  }
  for (const auto& [name, entry] : by_name_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
  return absl::OkStatus();
}

const TensorInfo* Checkpoint::Find(absl::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.tensor;
}

absl::Status Checkpoint::CheckPresent(absl::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end() || found->second.tensor != nullptr) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat(
      Quote(shard_of_.find(std::string(name))->second), ": not found; ",
      source_, " places tensor ", Quote(name), " there"));
}

absl::StatusOr<const TensorInfo*> Checkpoint::Require(
    absl::string_view name, absl::Span<const DType> dtypes,
    absl::Span<const int64_t> shape) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    const auto placed = shard_of_.find(std::string(name));
    if (placed == shard_of_.end()) {
      return absl::NotFoundError(
          absl::StrCat(source_, ": tensor ", Quote(name), ": not found"));
    }
    return absl::DataLossError(absl::StrCat(source_, ": tensor ", Quote(name),
                                            ": not in ", Quote(placed->second),
                                            ", where the index places it"));
  }
  MOE_RETURN_IF_ERROR(CheckPresent(name));
  const auto& [tensor, file] = found->second;
  const bool right_dtype =
      tensor->dtype &&
      std::find(dtypes.begin(), dtypes.end(), *tensor->dtype) != dtypes.end();
  const bool right_shape = Matches(tensor->shape, shape);
  if (!right_dtype || !right_shape) {
    const auto dtype_name = [](std::string* out, DType dtype) {
      out->append(DTypeName(dtype));
    };
    return absl::Status(
        right_dtype ? absl::StatusCode::kInvalidArgument
                    : absl::StatusCode::kUnimplemented,
        absl::StrCat(Where(*tensor), ": want ",
                     absl::StrJoin(dtypes, " or ", dtype_name), " ",
                     ShapeText(shape), ", got ", tensor->TypeText()));
  }
  MOE_RETURN_IF_ERROR(file->file().CheckSize());
  return tensor;
}

std::string Checkpoint::Where(const TensorInfo& tensor) const {
  const auto found = by_name_.find(tensor.name);
  MOE_CHECK(found != by_name_.end());
  return absl::StrCat(found->second.file->name(), ": tensor ",
                      Quote(tensor.name));
}

void Checkpoint::DropPages(absl::Span<const uint8_t> part) const {
  const std::less_equal<> at_most;  // of unrelated addresses, too
  for (const SafetensorsFile& file : files_) {
    const auto bytes = file.file().bytes();
    if (at_most(bytes.data(), part.data()) &&
        at_most(part.data() + part.size(), bytes.data() + bytes.size())) {
      file.file().DropPages(part);
      return;
    }
  }
  MOE_CHECK(part.empty());
}

}  // namespace moe
