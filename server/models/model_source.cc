#include "server/models/model_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "experts/checkpoint/text.h"

namespace moe {
namespace {

// Why a folder of a repository is no model; empty if it may be one.
std::string WhyNoModel(const std::string& name, const std::string& folder) {
  if (!IsModelName(name)) {
    return "want a name of at most 128 letters, digits, '-', '_', '.'";
  }
  struct stat info {};
  if (stat(absl::StrCat(folder, "/config.json").c_str(), &info) == 0) return "";
  if (errno == ENOENT) return "want a checkpoint, got no config.json";
  return absl::StrCat("can't read its config.json: ",
                      std::generic_category().message(errno));
}

}  // namespace

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

absl::StatusOr<Repository> ListRepository(const std::string& folder) {
  std::error_code error;
  Repository repository;
  for (std::filesystem::directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code ignored;  // a link to nowhere is no folder
    const std::string name = it->path().filename().string();
    if (absl::StartsWith(name, ".") || !it->is_directory(ignored)) continue;
    std::string reason = WhyNoModel(name, it->path().string());
    if (reason.empty()) {
      repository.models.push_back(
          {.name = name, .directory = it->path().string()});
    } else {
      repository.left_out.push_back(
          {.name = name, .reason = std::move(reason)});
    }
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("--model_repository: can't read folder ", folder, ": ",
                     error.message()));
  }
  const auto by_name = [](const auto& a, const auto& b) {
    return a.name < b.name;
  };
  std::sort(repository.models.begin(), repository.models.end(), by_name);
  std::sort(repository.left_out.begin(), repository.left_out.end(), by_name);
  if (repository.models.empty()) {
    const auto& left_out = repository.left_out;
    std::string why;
    if (!left_out.empty()) {
      why = absl::StrCat("; left out ", LeftOutText(left_out.front()));
    }
    if (left_out.size() > 1) {
      absl::StrAppend(&why, ", and ", left_out.size() - 1, " more");
    }
    return absl::NotFoundError(
        absl::StrCat("--model_repository: want a folder of model folders, ",
                     folder, " has none", why));
  }
  return repository;
}

std::string LeftOutText(const LeftOut& left_out) {
  return absl::StrCat(Quote(left_out.name), ": ", left_out.reason);
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
