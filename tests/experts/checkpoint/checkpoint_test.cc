#include "experts/checkpoint/checkpoint.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/tensors.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kDamaged = absl::StatusCode::kDataLoss;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TestTensor Tensor(absl::string_view name, float value = 1) {
  return FloatTensor(name, DType::kF32, {1, 2}, {value, value});
}

// A folder with config.json, two shards of a tensor each, and `index`.
void WriteShards(const TempFolder& folder, absl::string_view index) {
  folder.Write("config.json", R"({"model_type": "mixtral"})");
  WriteTensors(folder.File("s1.safetensors"), {Tensor("a", 1)});
  WriteTensors(folder.File("s2.safetensors"), {Tensor("b", 2)});
  folder.Write("model.safetensors.index.json", index);
}

TEST(CheckpointTest, OpensASingleFile) {
  const TestCheckpoint checkpoint({Tensor("a"), Tensor("b")},
                                  R"({"model_type": "olmoe"})");
  EXPECT_EQ(*checkpoint->config().String("model_type"), "olmoe");
  EXPECT_TRUE(checkpoint->Contains("a"));
  EXPECT_FALSE(checkpoint->Contains("c"));
  EXPECT_EQ(checkpoint->tensors().size(), 2U);
  EXPECT_EQ(checkpoint->total_bytes(), 16);
  EXPECT_EQ(checkpoint->Where(*checkpoint->Find("a")),
            "model.safetensors: tensor \"a\"");
}

TEST(CheckpointTest, FollowsTheIndex) {
  TempFolder folder;
  // The size is wrong, as in published files: it is not read.
  WriteShards(folder, R"({"metadata": {"total_size": 1},
      "weight_map": {"b": "s2.safetensors", "a": "s1.safetensors"}})");
  MOE_ASSERT_OK_AND_ASSIGN(Checkpoint opened, Checkpoint::Open(folder.path()));
  const Checkpoint checkpoint = std::move(opened);
  EXPECT_EQ(checkpoint.total_bytes(), 16);
  const TensorInfo* b = checkpoint.Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(LoadUnaligned<float>(b->bytes.data()), 2.0F);
  EXPECT_EQ(checkpoint.Where(*b), "s2.safetensors: tensor \"b\"");
  checkpoint.DropPages(b->bytes);
  EXPECT_EQ(LoadUnaligned<float>(b->bytes.data()), 2.0F);
}

TEST(CheckpointTest, TheSingleFileWinsOverTheIndex) {
  TempFolder folder;
  WriteShards(folder, "damaged");
  WriteTensors(folder.File("model.safetensors"), {Tensor("c")});
  MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                           Checkpoint::Open(folder.path()));
  EXPECT_TRUE(checkpoint.Contains("c"));
  EXPECT_FALSE(checkpoint.Contains("a"));
}

TEST(CheckpointTest, LeavesFilesAloneThatTheIndexDoesNotName) {
  TempFolder folder;
  WriteShards(folder, R"({"weight_map": {"a": "s1.safetensors"}})");
  folder.Write("s2.safetensors", "damaged");
  MOE_EXPECT_OK(Checkpoint::Open(folder.path()));
}

TEST(CheckpointTest, NamesWhatIsMissing) {
  TempFolder folder;
  EXPECT_THAT(Checkpoint::Open(folder.File("gone")),
              StatusIs(kNotFound, HasSubstr("want a folder")));
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(kNotFound, HasSubstr("config.json")));
  folder.Write("config.json", "{}");
  EXPECT_THAT(
      Checkpoint::Open(folder.path()),
      StatusIs(kNotFound, AllOf(HasSubstr("model.safetensors: not found"),
                                Not(HasSubstr("convert")))));
  folder.Write("pytorch_model.bin", "");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(kNotFound, HasSubstr(".bin file: convert the model to "
                                            "safetensors")));
  WriteShards(folder, R"({"weight_map": {"b": "s3.safetensors"}})");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(kNotFound, HasSubstr("s3.safetensors")));
}

TEST(CheckpointTest, WantsTheIndexOfShards) {
  TempFolder folder;
  folder.Write("config.json", "{}");
  WriteTensors(folder.File("model-00001-of-00002.safetensors"), {Tensor("a")});
  EXPECT_THAT(
      Checkpoint::Open(folder.path()),
      StatusIs(kNotFound,
               HasSubstr("model.safetensors.index.json: not found, but shards "
                         "such as \"model-00001-of-00002.safetensors\"")));
}

TEST(CheckpointTest, OpensWithoutTheFilesThatNobodyAsksFor) {
  TempFolder folder;
  WriteShards(folder, R"({"weight_map": {"a": "s1.safetensors",
                                         "c": "s3.safetensors"}})");
  MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                           Checkpoint::Open(folder.path()));
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "c"));
  MOE_EXPECT_OK(checkpoint.Require("a", {DType::kF32}, {1, 2}));
  EXPECT_TRUE(checkpoint.Contains("c"));
  EXPECT_EQ(checkpoint.Find("c"), nullptr);
  EXPECT_THAT(checkpoint.Require("c", {DType::kF32}, {1, 2}),
              StatusIs(kNotFound,
                       HasSubstr("\"s3.safetensors\": not found; "
                                 "model.safetensors.index.json places tensor "
                                 "\"c\" there")));
}

TEST(CheckpointTest, TheIndexMayNameTensorsThatThereAreNot) {
  TempFolder folder;
  WriteShards(folder, R"({"weight_map": {"a": "s1.safetensors",
                                         "gone": "s1.safetensors"}})");
  MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                           Checkpoint::Open(folder.path()));
  EXPECT_FALSE(checkpoint.Contains("gone"));
  EXPECT_THAT(
      checkpoint.Require("gone", {DType::kF32}, {1, 2}),
      StatusIs(kDamaged, HasSubstr("model.safetensors.index.json: tensor "
                                   "\"gone\": not in \"s1.safetensors\", "
                                   "where the index places it")));
}

TEST(CheckpointTest, TheIndexDecidesWhichCopyCounts) {
  for (const char* chosen : {"s1.safetensors", "s2.safetensors"}) {
    SCOPED_TRACE(chosen);
    TempFolder folder;
    WriteShards(folder, absl::StrCat(R"({"weight_map": {"a": ")", chosen,
                                     R"(", "b": "s2.safetensors",
                                         "c": "s1.safetensors"}})"));
    WriteTensors(folder.File("s1.safetensors"), {Tensor("a", 1), Tensor("c")});
    WriteTensors(folder.File("s2.safetensors"), {Tensor("a", 2), Tensor("b")});
    MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                             Checkpoint::Open(folder.path()));
    const TensorInfo* a = checkpoint.Find("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(checkpoint.Where(*a), absl::StrCat(chosen, ": tensor \"a\""));
    EXPECT_EQ(checkpoint.tensors().size(), 3U);
    EXPECT_EQ(checkpoint.total_bytes(), 24);
  }
}

TEST(CheckpointTest, RefusesCopiesThatTheIndexDoesNotPlace) {
  TempFolder folder;
  WriteShards(folder, R"({"weight_map": {"c": "s1.safetensors",
                                         "b": "s2.safetensors"}})");
  WriteTensors(folder.File("s2.safetensors"), {Tensor("a"), Tensor("b")});
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(kDamaged, HasSubstr("s2.safetensors: tensor \"a\": is "
                                           "in s1.safetensors, too")));
}

TEST(CheckpointTest, RefusesDamagedParts) {
  TempFolder folder;
  WriteShards(folder, R"({"weight_map": {"a": "../s1.safetensors"}})");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(kDamaged, HasSubstr("file in the same folder")));
  WriteShards(folder, R"({"weight_map": {"a": "s1.safetensors"}})");
  folder.Write("s1.safetensors", "damaged!damaged");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(kDamaged, HasSubstr("s1.safetensors: header")));
  folder.Write("config.json", "{");
  EXPECT_THAT(Checkpoint::Open(folder.path()),
              StatusIs(kDamaged, HasSubstr("config.json: not valid JSON")));
}

TEST(CheckpointRequireTest, GivesTheTensorThatFits) {
  const TestCheckpoint checkpoint({Tensor("a")});
  const TensorInfo* a = checkpoint->Find("a");
  EXPECT_EQ(*checkpoint->Require("a", {DType::kBF16, DType::kF32}, {1, 2}), a);
  EXPECT_EQ(*checkpoint->Require("a", {DType::kF32}, {-1, 2}), a);
}

TEST(CheckpointRequireTest, NamesWantedAndGot) {
  const TestCheckpoint checkpoint({Tensor("a")});
  EXPECT_THAT(checkpoint->Require("x", {DType::kF32}, {1, 2}),
              StatusIs(kNotFound, std::string("model.safetensors: tensor "
                                              "\"x\": not found")));
  EXPECT_THAT(
      checkpoint->Require("a", {DType::kF32, DType::kBF16}, {2, -1}),
      StatusIs(kInvalid, std::string("model.safetensors: tensor \"a\": want "
                                     "F32 or BF16 [2, ?], got F32 [1, 2]")));
  EXPECT_THAT(checkpoint->Require("a", {DType::kF32}, {1, 2, 1}),
              StatusIs(kInvalid, HasSubstr("want F32 [1, 2, 1]")));
  EXPECT_THAT(
      checkpoint->Require("a", {DType::kBF16}, {1, 2}),
      StatusIs(kUnimplemented, std::string("model.safetensors: tensor \"a\": "
                                           "want BF16 [1, 2], got F32 "
                                           "[1, 2]")));
}

TEST(CheckpointRequireTest, NoticesAFileThatHasShrunk) {
  const TestCheckpoint checkpoint({Tensor("a")});
  ASSERT_EQ(truncate(checkpoint.folder().File("model.safetensors").c_str(), 20),
            0);
  EXPECT_THAT(checkpoint->Require("a", {DType::kF32}, {1, 2}),
              StatusIs(kDamaged, HasSubstr("has 20 now")));
}

TEST(CheckpointRequireTest, NamesAnUnknownDType) {
  TempFolder folder;
  folder.Write("config.json", "{}");
  const std::string header =
      R"({"t":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})";
  const uint64_t length = header.size();
  folder.Write(
      "model.safetensors",
      std::string(reinterpret_cast<const char*>(&length), 8) + header + "x");
  MOE_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint,
                           Checkpoint::Open(folder.path()));
  EXPECT_THAT(checkpoint.Require("t", {DType::kF32}, {2}),
              StatusIs(kUnimplemented,
                       HasSubstr("want F32 [2], got dtype \"F4\" [2]")));
}

}  // namespace
}  // namespace moe
