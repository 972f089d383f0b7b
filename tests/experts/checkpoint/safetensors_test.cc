#include "experts/checkpoint/safetensors.h"

#include <cstdint>
#include <cstring>
#include <ostream>
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
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr auto kDamaged = absl::StatusCode::kDataLoss;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The bytes of a file with this header and `data_size` bytes of data.
std::string FileOf(absl::string_view header, size_t data_size) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return absl::StrCat(file, header, std::string(data_size, '\0'));
}

absl::StatusOr<SafetensorsHeader> Parse(absl::string_view file) {
  return ParseSafetensorsHeader(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(file.data()),
                          file.size()),
      "f");
}

std::string Entry(absl::string_view name, absl::string_view dtype,
                  absl::string_view shape, absl::string_view offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype,
                      "\",\"shape\":", shape, ",\"data_offsets\":", offsets,
                      "}");
}

TEST(SafetensorsTest, ListsTensorsInTheOrderOfTheirData) {
  const std::string file =
      FileOf(absl::StrCat("{", Entry("a", "F32", "[2]", "[2,10]"), ",",
                          Entry("b", "BF16", "[]", "[0,2]"), ",",
                          Entry("empty", "F32", "[0,7]", "[2,2]"),
                          R"(,"__metadata__":{"format":"pt"}}  )"),
             10);
  MOE_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, Parse(file));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "b");
  EXPECT_EQ(header.tensors[0].TypeText(), "BF16 []");
  EXPECT_EQ(header.tensors[0].elements(), 1);
  EXPECT_EQ(header.tensors[1].name, "empty");
  EXPECT_EQ(header.tensors[1].elements(), 0);
  EXPECT_EQ(header.tensors[2].name, "a");
  EXPECT_EQ(header.tensors[2].dtype, DType::kF32);
  EXPECT_THAT(header.tensors[2].shape, ElementsAre(2));
  EXPECT_EQ(header.tensors[2].bytes.size(), 8U);
  EXPECT_EQ(reinterpret_cast<const char*>(header.tensors[2].bytes.data()),
            file.data() + file.size() - 8);
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt")));
}

TEST(SafetensorsTest, KnowsEveryDType) {
  const std::pair<const char*, int> dtypes[] = {
      {"F64", 8},     {"F32", 4},     {"F16", 2},     {"BF16", 2},
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I64", 8},
      {"I32", 4},     {"I16", 2},     {"I8", 1},      {"U64", 8},
      {"U32", 4},     {"U16", 2},     {"U8", 1},      {"BOOL", 1}};
  for (const auto& [name, bytes] : dtypes) {
    SCOPED_TRACE(name);
    const std::string file = FileOf(
        absl::StrCat(
            "{", Entry("t", name, "[3]", absl::StrCat("[0,", 3 * bytes, "]")),
            "}"),
        3 * bytes);
    MOE_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, Parse(file));
    EXPECT_TRUE(header.tensors[0].dtype.has_value());
  }
}

TEST(SafetensorsTest, ListsATensorOfAnUnknownDType) {
  MOE_ASSERT_OK_AND_ASSIGN(
      const SafetensorsHeader header,
      Parse(
          FileOf(absl::StrCat("{", Entry("t", "F4", "[8]", "[0,4]"), "}"), 4)));
  EXPECT_EQ(header.tensors[0].dtype, std::nullopt);
  EXPECT_EQ(header.tensors[0].TypeText(), "dtype \"F4\" [8]");
  EXPECT_EQ(header.tensors[0].bytes.size(), 4U);
}

TEST(SafetensorsTest, AFileMayHoldNothing) {
  MOE_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                           Parse(FileOf("{}", 0)));
  EXPECT_THAT(header.tensors, IsEmpty());
}

struct DamagedFile {
  std::string name;
  std::string file;
  std::string message;
};

void PrintTo(const DamagedFile& damaged, std::ostream* out) {
  *out << damaged.name;
}

class DamagedSafetensorsTest : public ::testing::TestWithParam<DamagedFile> {};

TEST_P(DamagedSafetensorsTest, IsRefused) {
  EXPECT_THAT(Parse(GetParam().file),
              StatusIs(kDamaged, HasSubstr(GetParam().message)));
}

// One tensor "t" and as many bytes of data.
DamagedFile OneTensor(absl::string_view name, absl::string_view dtype,
                      absl::string_view shape, absl::string_view offsets,
                      size_t data_size, absl::string_view message) {
  return {std::string(name),
          FileOf(absl::StrCat("{", Entry("t", dtype, shape, offsets), "}"),
                 data_size),
          absl::StrCat("f: ", message)};
}
DamagedFile Header(absl::string_view name, absl::string_view header,
                   absl::string_view message) {
  return {std::string(name), FileOf(header, 0), absl::StrCat("f: ", message)};
}

INSTANTIATE_TEST_SUITE_P(
    All, DamagedSafetensorsTest,
    ::testing::Values(
        DamagedFile{"Empty", "", "f: want at least 8 bytes, got 0"},
        DamagedFile{"ShorterThanALength", "1234567",
                    "f: want at least 8 bytes, got 7"},
        DamagedFile{"HeaderBeyondTheFile", FileOf("{}", 0).substr(0, 9),
                    "f: header: want at most 1 bytes, got a length of 2"},
        DamagedFile{"HugeHeader", std::string(100, '\xff'),
                    "f: header: want at most 92 bytes"},
        DamagedFile{"GitLfsPointer",
                    "version https://git-lfs.github.com/spec/v1\noid sha256:0",
                    "f: is a git-lfs pointer"},
        Header("NotJson", "{\"t\"", "header: not valid JSON"),
        Header("EmptyHeader", "", "header: not valid JSON"),
        Header("Null", "null", "header: want a JSON object"),
        Header("ZerosAfterTheHeader", std::string("{}\0\0", 4),
               "header: not valid JSON"),
        Header("DuplicateName", R"({"t":{},"t":{}})",
               "header: key \"t\" appears twice"),
        Header("DeepNesting", std::string(100, '['),
               "header: nested deeper than 64"),
        Header("EntryIsNoObject", R"({"t":1})",
               "tensor \"t\": want an object of dtype, shape and data_offsets"),
        Header("EntryLacksShape",
               R"({"t":{"dtype":"U8","data_offsets":[0,0]}})",
               "tensor \"t\": want an object of"),
        Header("DTypeIsNoString",
               R"({"t":{"dtype":1,"shape":[],"data_offsets":[0,1]}})",
               "tensor \"t\": dtype: want a string"),
        Header("MetadataIsNoObject", R"({"__metadata__":[]})",
               "__metadata__: want an object of strings"),
        Header("MetadataValueIsNoString", R"({"__metadata__":{"k":1}})",
               "__metadata__: \"k\": want a string"),
        OneTensor("NegativeExtent", "U8", "[-1]", "[0,1]", 1,
                  "tensor \"t\": shape: want an array of integers >= 0"),
        OneTensor("FractionalExtent", "U8", "[1.0]", "[0,1]", 1,
                  "tensor \"t\": shape: want"),
        OneTensor("ExtentBeyondInt64", "U8", "[18446744073709551615]", "[0,1]",
                  1, "tensor \"t\": shape: want"),
        OneTensor("ShapeIsNoArray", "U8", "1", "[0,1]", 1,
                  "tensor \"t\": shape: want"),
        OneTensor("ProductOverflows", "U8", "[4294967296,4294967296]", "[0,1]",
                  1, "tensor \"t\": shape [4294967296, 4294967296]: too large"),
        OneTensor("BytesOverflow", "F64", "[2305843009213693951]", "[0,1]", 1,
                  "tensor \"t\": shape [2305843009213693951]: too large"),
        OneTensor("UnknownDTypeOverflows", "F4", "[4294967296,4294967296]",
                  "[0,1]", 1, "tensor \"t\": shape"),
        OneTensor("OneOffset", "U8", "[1]", "[0]", 1,
                  "tensor \"t\": data_offsets: want two integers >= 0"),
        OneTensor("NegativeOffset", "U8", "[1]", "[-1,0]", 1,
                  "tensor \"t\": data_offsets: want two integers >= 0"),
        OneTensor("EndBeforeBegin", "U8", "[1]", "[1,0]", 1,
                  "tensor \"t\": data_offsets: want begin <= end <= 1, got "
                  "[1, 0]"),
        OneTensor("EndBeyondTheFile", "U8", "[2]", "[0,2]", 1,
                  "tensor \"t\": data_offsets: want begin <= end <= 1, got "
                  "[0, 2]"),
        OneTensor("TooFewBytes", "BF16", "[8,64]", "[0,1000]", 1000,
                  "tensor \"t\": shape [8, 64] of BF16 wants 1024 bytes, got "
                  "1000"),
        OneTensor("TooManyBytes", "U8", "[1]", "[0,2]", 2,
                  "tensor \"t\": shape [1] of U8 wants 1 bytes, got 2"),
        OneTensor("HoleAtTheStart", "U8", "[1]", "[1,2]", 2,
                  "tensor \"t\": data_offsets: want begin 0"),
        OneTensor("HoleAtTheEnd", "U8", "[1]", "[0,1]", 3,
                  "the tensors end at byte 1 of the data, of 3"),
        DamagedFile{
            "HoleInTheMiddle",
            FileOf(absl::StrCat("{", Entry("a", "U8", "[1]", "[0,1]"), ",",
                                Entry("b", "U8", "[1]", "[2,3]"), "}"),
                   3),
            "f: tensor \"b\": data_offsets: want begin 1, where the "
            "tensor before it ends, got 2"},
        DamagedFile{
            "Overlap",
            FileOf(absl::StrCat("{", Entry("a", "U8", "[2]", "[0,2]"), ",",
                                Entry("b", "U8", "[2]", "[1,3]"), "}"),
                   3),
            "f: tensor \"b\": data_offsets: want begin 2"},
        DamagedFile{
            "SharedData",
            FileOf(absl::StrCat("{", Entry("a", "U8", "[2]", "[0,2]"), ",",
                                Entry("b", "U8", "[2]", "[0,2]"), "}"),
                   2),
            "data_offsets: want begin 2"}),
    [](const ::testing::TestParamInfo<DamagedFile>& param) {
      return param.param.name;
    });

TEST(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string file =
      FileOf(absl::StrCat("{", Entry("a", "F32", "[2]", "[0,8]"), "}"), 8);
  MOE_ASSERT_OK(Parse(file));
  for (size_t size = 0; size < file.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_THAT(Parse(file.substr(0, size)),
                StatusIs(kDamaged, HasSubstr("f: ")));
  }
}

TEST(SafetensorsFileTest, FindsTensorsByName) {
  TempFolder folder;
  const std::string path = folder.File("a.safetensors");
  WriteTensors(path, {FloatTensor("x", DType::kF32, {2}, {1, 2}),
                      FloatTensor("y", DType::kBF16, {1, 1}, {3})});
  MOE_ASSERT_OK_AND_ASSIGN(SafetensorsFile opened, SafetensorsFile::Open(path));
  const TensorInfo* x = opened.Find("x");
  const SafetensorsFile file = std::move(opened);
  EXPECT_EQ(file.name(), "a.safetensors");
  EXPECT_EQ(file.Find("x"), x) << "moving must keep addresses";
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(LoadUnaligned<float>(x->bytes.data() + 4), 2.0F);
  EXPECT_EQ(file.Find("z"), nullptr);
}

TEST(SafetensorsFileTest, ErrorsNameTheFileWithoutItsFolder) {
  TempFolder folder;
  EXPECT_THAT(SafetensorsFile::Open(folder.Write("a.safetensors", "abc")),
              StatusIs(kDamaged, AllOf(HasSubstr("a.safetensors: want"),
                                       Not(HasSubstr(folder.path())))));
  EXPECT_THAT(
      SafetensorsFile::Open(folder.File("b.safetensors")),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("b.safetensors")));
}

TEST(LayOutSafetensorsTest, WhatIsWrittenReadsBack) {
  const std::vector<TestTensor> tensors = {
      RawTensor<uint8_t>("bytes", DType::kU8, {3}, {1, 2, 3}),
      FloatTensor("matrix", DType::kF32, {2, 2}, {1, 2, 3, 4}),
      RawTensor<int64_t>("scalar", DType::kI64, {}, {-7}),
      FloatTensor("empty", DType::kBF16, {0, 5}, {}),
      FloatTensor("name \"with\"\n\xc3\xa4", DType::kF16, {1}, {0.5F}),
  };
  TempFolder folder;
  const std::string path = folder.File("out.safetensors");
  WriteTensors(path, tensors, {{"info", "{\"k\": 1}"}});
  MOE_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                           SafetensorsFile::Open(path));
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("info", "{\"k\": 1}")));
  for (const TestTensor& want : tensors) {
    SCOPED_TRACE(want.name);
    const TensorInfo* got = file.Find(want.name);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->dtype, want.dtype);
    EXPECT_EQ(got->shape, want.shape);
    EXPECT_EQ(got->bytes, absl::MakeConstSpan(want.bytes));
    const auto offset =
        static_cast<size_t>(got->bytes.data() - file.file().bytes().data());
    EXPECT_EQ(offset % DTypeBytes(want.dtype), 0U) << "not aligned";
  }
}

TEST(LayOutSafetensorsTest, RefusesTensorsThatDoNotFit) {
  const std::vector<uint8_t> bytes(8);
  const auto write = [](std::vector<TensorToWrite> tensors) {
    return LayOutSafetensors(tensors);
  };
  EXPECT_THAT(write({{"t", DType::kF32, {3}, bytes}}),
              StatusIs(kInvalid,
                       HasSubstr("tensor \"t\": shape [3] wants 12 bytes, got "
                                 "8")));
  EXPECT_THAT(
      write({{"t", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}, bytes}}),
      StatusIs(kInvalid, HasSubstr("wants too many bytes")));
  EXPECT_THAT(
      write({{"t", DType::kF32, {2}, bytes}, {"t", DType::kU8, {8}, bytes}}),
      StatusIs(kInvalid, HasSubstr("tensor \"t\": appears twice")));
  EXPECT_THAT(write({{"__metadata__", DType::kF32, {2}, bytes}}),
              StatusIs(kInvalid, HasSubstr("the name is reserved")));
}

}  // namespace
}  // namespace moe
