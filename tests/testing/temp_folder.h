// A folder that lives as long as a test.

#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "experts/base/check.h"
#include "gtest/gtest.h"

namespace moe {

class TempFolder {
 public:
  TempFolder() : path_(absl::StrCat(::testing::TempDir(), "/moe-XXXXXX")) {
    MOE_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const {
    return absl::StrCat(path_, "/", name);
  }
  // Writes a file and returns its path.
  std::string Write(absl::string_view name, absl::string_view content) const {
    std::ofstream(File(name), std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return File(name);
  }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  std::string path_;
};

}  // namespace moe
