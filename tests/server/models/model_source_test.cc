#include "server/models/model_source.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void MakeModel(const TempFolder& repository, const std::string& name) {
  fs::create_directory(repository.File(name));
  repository.Write(absl::StrCat(name, "/config.json"), "{}");
}

std::vector<std::string> Models(const Repository& repository) {
  std::vector<std::string> names;
  for (const ModelSource& model : repository.models)
    names.push_back(model.name);
  return names;
}
std::vector<std::string> LeftOuts(const Repository& repository) {
  std::vector<std::string> texts;
  for (const LeftOut& folder : repository.left_out) {
    texts.push_back(LeftOutText(folder));
  }
  return texts;
}

TEST(IsModelNameTest, TakesLettersDigitsAndThreeSigns) {
  for (const std::string& name :
       {std::string("a"), std::string("Qwen3-30B_A3B.v2"), std::string("0"),
        std::string(128, 'x')}) {
    EXPECT_TRUE(IsModelName(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string(".hidden"), std::string("a b"),
        std::string("a/b"), std::string("a=b"), std::string("lost+found"),
        std::string("\xc3\xa4"), std::string(129, 'x')}) {
    EXPECT_FALSE(IsModelName(name)) << name;
  }
}

TEST(ListRepositoryTest, ListsModelsByName) {
  const TempFolder folder;
  MakeModel(folder, "b");
  MakeModel(folder, "a.2");
  folder.Write("README.md", "no folder");
  MOE_ASSERT_OK_AND_ASSIGN(const Repository repository,
                           ListRepository(folder.path()));
  EXPECT_THAT(Models(repository), ElementsAre("a.2", "b"));
  EXPECT_EQ(repository.models.front().directory, folder.File("a.2"));
  EXPECT_THAT(repository.left_out, IsEmpty());
}

TEST(ListRepositoryTest, LeavesOddFoldersOutAndSaysWhy) {
  const TempFolder folder;
  MakeModel(folder, "good");
  MakeModel(folder, "my model");
  MakeModel(folder, "a=b");
  MakeModel(folder, ".hidden");
  fs::create_directory(folder.File("lost+found"));
  fs::create_directory(folder.File("empty"));
  fs::create_symlink("nowhere", folder.File("dangling"));
  fs::create_directory(folder.File("loop"));
  fs::create_symlink("config.json", folder.File("loop/config.json"));
  MOE_ASSERT_OK_AND_ASSIGN(const Repository repository,
                           ListRepository(folder.path()));
  EXPECT_THAT(Models(repository), ElementsAre("good"));
  const std::string name =
      ": want a name of at most 128 letters, digits, '-', '_', '.'";
  EXPECT_THAT(LeftOuts(repository),
              ElementsAre("\"a=b\"" + name,
                          "\"empty\": want a checkpoint, got no config.json",
                          HasSubstr("\"loop\": can't read its config.json: "),
                          "\"lost+found\"" + name, "\"my model\"" + name));
}

TEST(ListRepositoryTest, WantsAModelAndNamesTheFlag) {
  const TempFolder folder;
  EXPECT_THAT(ListRepository(folder.File("none")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("--model_repository: can't read folder")));
  EXPECT_THAT(ListRepository(folder.path()),
              StatusIs(absl::StatusCode::kNotFound,
                       "--model_repository: want a folder of model folders, " +
                           folder.path() + " has none"));
  fs::create_directory(folder.File("a"));
  fs::create_directory(folder.File("b"));
  EXPECT_THAT(
      ListRepository(folder.path()),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("has none; left out \"a\": want a checkpoint, got no "
                         "config.json, and 1 more")));
}

}  // namespace
}  // namespace moe
