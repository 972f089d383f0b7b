// config.json of a folder whose index names every tensor of every golden case,
// so that each family finds its own: what model the config describes. The input
// is config.json.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "experts/base/no_destructor.h"
#include "experts/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"
#include "router/models/model_spec.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using moe::Checkpoint;

// An index that names every tensor of every golden case. All but one of the
// shards are missing, which is no error until one is read.
std::string MakeIndex() {
  nlohmann::json shards = {{"here", "here.safetensors"}};
  for (const auto& entry :
       std::filesystem::directory_iterator(MOE_GOLDEN_DIR)) {
    if (!entry.is_directory()) continue;
    const auto golden = Checkpoint::Open(entry.path().string());
    MOE_CHECK(golden.ok());
    for (const absl::string_view tensor : golden->names()) {
      shards[std::string(tensor)] = "missing.safetensors";
    }
  }
  return nlohmann::json{{"weight_map", shards}}.dump();
}

// A folder for one input; removed with the object.
class Folder {
 public:
  Folder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "moe-fuzz-XXXXXX").string();
    MOE_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
    static const moe::NoDestructor<std::string> index(MakeIndex());
    Write("model.safetensors.index.json", *index);
    const std::string header =
        R"({"here":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    const uint64_t length = header.size();
    Write("here.safetensors",
          absl::StrCat(std::string(reinterpret_cast<const char*>(&length), 8),
                       header, "data"));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  void Write(absl::string_view name, absl::string_view content) const {
    std::ofstream(absl::StrCat(path_, "/", name), std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
  }

 private:
  std::string path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Folder folder;
  folder.Write("config.json", moe::TextOf(data, size));
  const auto checkpoint = Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) return 0;
  const auto models = moe::DescribeModels(*checkpoint);
  if (!models.ok()) {
    moe::CheckError(models.status(), "");
    return 0;
  }
  for (const moe::ModelSpec& model : *models) {
    MOE_CHECK(!model.layers.empty() && model.parameters() > 0);
  }
  return 0;
}
