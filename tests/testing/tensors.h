// Tensors made of given values, and checkpoints made of tensors, for tests.

#pragma once

#include <cstdint>
#include <fstream>
#include <ios>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "experts/base/check.h"
#include "experts/base/dtype.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/checkpoint/safetensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace moe {

// A tensor that owns its bytes.
struct TestTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};

// A tensor of `values` as they are: floats as F32, uint16_t as BF16, F16, ...
template <typename T>
TestTensor RawTensor(absl::string_view name, DType dtype,
                     std::vector<int64_t> shape, const std::vector<T>& values) {
  const auto bytes = AsBytes(absl::MakeConstSpan(values));
  return {std::string(name), dtype, std::move(shape),
          std::vector<uint8_t>(bytes.begin(), bytes.end())};
}

// A tensor of `dtype` (F32, BF16, F16 or F64) whose values are the nearest ones
// to `values`.
inline TestTensor FloatTensor(absl::string_view name, DType dtype,
                              std::vector<int64_t> shape,
                              const std::vector<float>& values) {
  if (dtype == DType::kF32) {
    return RawTensor(name, dtype, std::move(shape), values);
  }
  if (dtype == DType::kF64) {
    return RawTensor(name, dtype, std::move(shape),
                     std::vector<double>(values.begin(), values.end()));
  }
  MOE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  std::vector<uint16_t> bits;
  for (const float value : values) {
    bits.push_back(dtype == DType::kBF16 ? FloatToBF16(value)
                                         : FloatToF16(value));
  }
  return RawTensor(name, dtype, std::move(shape), bits);
}

inline void WriteTensors(const std::string& path,
                         const std::vector<TestTensor>& tensors,
                         const SafetensorsMetadata& metadata = {}) {
  std::vector<TensorToWrite> views;
  for (const TestTensor& tensor : tensors) {
    views.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  }
  const auto parts = LayOutSafetensors(views, metadata);
  MOE_EXPECT_OK(parts);
  MOE_CHECK(parts.ok());
  std::ofstream file(path, std::ios::binary);
  file << parts->header;
  for (const absl::Span<const uint8_t> bytes : parts->data) {
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  MOE_CHECK(file.flush().good());
}

// A checkpoint of one file in a folder of its own.
class TestCheckpoint {
 public:
  explicit TestCheckpoint(const std::vector<TestTensor>& tensors,
                          absl::string_view config = "{}") {
    folder_.Write("config.json", config);
    WriteTensors(folder_.File("model.safetensors"), tensors);
    auto opened = Checkpoint::Open(folder_.path());
    MOE_EXPECT_OK(opened);
    MOE_CHECK(opened.ok());
    checkpoint_.emplace(*std::move(opened));
  }

  const TempFolder& folder() const { return folder_; }
  const Checkpoint& get() const { return *checkpoint_; }
  const Checkpoint& operator*() const { return *checkpoint_; }
  const Checkpoint* operator->() const { return &*checkpoint_; }

 private:
  TempFolder folder_;
  std::optional<Checkpoint> checkpoint_;
};

}  // namespace moe
