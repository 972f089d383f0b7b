#include "server/models/model_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "experts/base/status_macros.h"

namespace moe {

// Names become metric labels, and parts of other names and of paths.
bool IsModelName(absl::string_view name) {
  constexpr size_t kMaxLength = 128;
  return !name.empty() && name.front() != '.' && name.size() <= kMaxLength &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  c == '-' || c == '_' || c == '.';
         });
}

absl::StatusOr<ModelSource> ParseModelSource(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (!IsModelName(parts.first) || parts.second.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: want NAME=DIR with a name of letters, digits, "
                     "'-', '_', '.'; got \"",
                     text, "\""));
  }
  return ModelSource{.name = std::string(parts.first),
                     .directory = std::string(parts.second)};
}

absl::StatusOr<std::vector<ModelSource>> ListRepository(
    const std::string& folder) {
  std::error_code error;
  std::vector<ModelSource> models;
  for (std::filesystem::directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    if (!it->is_directory(error)) continue;
    const std::string name = it->path().filename().string();
    if (absl::StartsWith(name, ".")) continue;
    MOE_ASSIGN_OR_RETURN(
        ModelSource source,
        ParseModelSource(absl::StrCat(name, "=", it->path().string())));
    models.push_back(std::move(source));
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("--model_repository: can't read folder ", folder, ": ",
                     error.message()));
  }
  if (models.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--model_repository: want a folder of model folders, ",
                     folder, " has none"));
  }
  std::sort(models.begin(), models.end(),
            [](const ModelSource& a, const ModelSource& b) {
              return a.name < b.name;
            });
  return models;
}

std::string FolderStamp(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    struct stat info {};
    if (stat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      continue;
    }
    files.push_back(absl::StrCat(
        it->path().filename().string(), "/", info.st_dev, "/", info.st_ino, "/",
        info.st_size, "/", info.st_mtim.tv_sec, "/", info.st_mtim.tv_nsec));
  }
  std::sort(files.begin(), files.end());
  return absl::StrJoin(files, "\n");
}

}  // namespace moe
