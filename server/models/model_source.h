// Where models are: folders given by name, and folders of such folders.
//
// Thread-safe: pure functions of the file system.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moe {

struct ModelSource {
  std::string name;
  std::string directory;
};

// Whether a model can have this name: letters, digits, '-', '_', '.', at most
// 128; not hidden.
bool IsModelName(absl::string_view name);

// "NAME=DIR" as in --model.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<ModelSource> ParseModelSource(absl::string_view text);

// The models below a repository folder, by name. Hidden folders are left out.
// Errors: NOT_FOUND if it can't be read or holds none, INVALID_ARGUMENT for a
// folder whose name no model can have.
absl::StatusOr<std::vector<ModelSource>> ListRepository(
    const std::string& folder);

// What tells a model folder from the same folder with other contents: the
// names, inodes, sizes and times of its files. Costs one stat per file.
std::string FolderStamp(const std::string& folder);

}  // namespace moe
