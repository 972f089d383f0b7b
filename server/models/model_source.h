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

// A folder of a repository that is no model, and why.
struct LeftOut {
  std::string name;
  std::string reason;
};

// As messages have it: "lost+found": want ...
std::string LeftOutText(const LeftOut& left_out);

// Both sorted by name.
struct Repository {
  std::vector<ModelSource> models;
  std::vector<LeftOut> left_out;
};

// The folders of a repository. Those with a config.json and a name that a model
// can have are models; the others are left out, hidden ones without a word.
// Errors: NOT_FOUND if it can't be read or holds no model.
absl::StatusOr<Repository> ListRepository(const std::string& folder);

// What tells a model folder from the same folder with other contents: the
// names, inodes, sizes and times of its files. Costs one stat per file.
std::string FolderStamp(const std::string& folder);

}  // namespace moe
