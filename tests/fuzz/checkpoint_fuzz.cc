// A checkpoint folder, and reading every matrix that opens. The input is
// config.json up to the first zero byte; what follows is model.safetensors.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "experts/checkpoint/checkpoint.h"
#include "experts/checkpoint/open_matrix.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using moe::Checkpoint;
using moe::Matrix;
using moe::StoredMatrix;
using moe::StoredOrder;

// A folder for one input.
class Folder {
 public:
  Folder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "moe-fuzz-XXXXXX").string();
    MOE_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
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

// The sanitizer sees no bounds within a mapping, but those of heap memory: this
// reads the matrix from copies of exactly what it says it extends over.
void ReadFromCopies(StoredMatrix matrix) {
  const auto data = matrix.DataExtent();
  const auto scales = matrix.ScaleExtent();
  const auto zeros = matrix.ZeroExtent();
  const std::vector<uint8_t> data_copy(data.begin(), data.end());
  const std::vector<uint8_t> scales_copy(scales.begin(), scales.end());
  const std::vector<uint8_t> zeros_copy(zeros.begin(), zeros.end());
  matrix.data = data_copy.data() - (data.data() - matrix.data);
  if (!scales.empty()) {
    matrix.scales = scales_copy.data() - (scales.data() - matrix.scales);
  }
  if (!zeros.empty()) {
    matrix.zeros = zeros_copy.data() - (zeros.data() - matrix.zeros);
  }
  std::vector<float> row(static_cast<size_t>(matrix.cols));
  for (int64_t i = 0; i < matrix.rows; ++i) {
    matrix.Read(i, 0, absl::MakeSpan(row));
    matrix.Read(i, matrix.cols / 2,
                absl::MakeSpan(row).subspan(row.size() / 2));
  }
  if (matrix.coding != moe::StoredCoding::kPlain) {
    std::vector<uint8_t> codes(row.size());
    matrix.ReadCodes(matrix.rows - 1, 0, matrix.cols, codes.data());
  }
  std::vector<float> block(static_cast<size_t>(matrix.rows * matrix.cols));
  matrix.ReadBlock(0, 0, Matrix(block.data(), matrix.rows, matrix.cols));
}

// Whether `part` lies in the data of one tensor.
bool InOneTensor(const Checkpoint& checkpoint, absl::Span<const uint8_t> part) {
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [part](const moe::TensorInfo* tensor) {
                       const uint8_t* begin = tensor->bytes.data();
                       return part.data() >= begin &&
                              part.data() + part.size() <=
                                  begin + tensor->bytes.size();
                     });
}

void CheckMatrix(const Checkpoint& checkpoint, const StoredMatrix& matrix) {
  const auto data = matrix.DataExtent();
  const auto scales = matrix.ScaleExtent();
  const auto zeros = matrix.ZeroExtent();
  MOE_CHECK(InOneTensor(checkpoint, data));
  MOE_CHECK(scales.empty() || InOneTensor(checkpoint, scales));
  MOE_CHECK(zeros.empty() || InOneTensor(checkpoint, zeros));
  ReadFromCopies(matrix);
  ReadFromCopies(matrix.Rows(matrix.rows / 2, matrix.rows - matrix.rows / 2));
  ReadFromCopies(matrix.Rows(matrix.rows - 1, 1));
  if (matrix.rows >= 2) ReadFromCopies(matrix.Rows(1, matrix.rows / 2, 2));
  if (matrix.coding == moe::StoredCoding::kPlain ||
      matrix.coding == moe::StoredCoding::kScaled) {
    ReadFromCopies(matrix.Transposed());
    ReadFromCopies(matrix.Cols(matrix.cols - 1, 1));
    if (matrix.cols >= 2) ReadFromCopies(matrix.Cols(1, matrix.cols / 2, 2));
  }
}

void TryMatrix(const Checkpoint& checkpoint, absl::string_view name,
               int64_t rows, int64_t cols) {
  for (const StoredOrder order : {StoredOrder::kOutIn, StoredOrder::kInOut}) {
    const auto matrix = moe::OpenMatrix(checkpoint, name, rows, cols, order);
    if (matrix.ok()) {
      CheckMatrix(checkpoint, *matrix);
    } else {
      moe::CheckError(matrix.status(), "");
    }
  }
}

void TryStack(const Checkpoint& checkpoint, absl::string_view name,
              int64_t count, int64_t rows, int64_t cols) {
  for (const StoredOrder order : {StoredOrder::kOutIn, StoredOrder::kInOut}) {
    const auto stack =
        moe::OpenStack(checkpoint, name, count, rows, cols, order);
    if (stack.ok()) {
      CheckMatrix(checkpoint, (*stack)[0]);
      CheckMatrix(checkpoint, (*stack)[count - 1]);
    } else {
      moe::CheckError(stack.status(), "");
    }
  }
}

// Asks for the matrix in every way in which this tensor may be a part of one.
void TryAll(const Checkpoint& checkpoint, const moe::TensorInfo& tensor) {
  const auto& shape = tensor.shape;
  const auto extent = [&shape](size_t i) {
    // Far from overflow in what follows.
    return std::min(shape[i], int64_t{1} << 32);
  };
  absl::string_view stem = tensor.name;
  if (shape.size() == 1) {
    const auto vector = moe::ReadVector(checkpoint, stem, extent(0));
    if (!vector.ok()) moe::CheckError(vector.status(), "");
  } else if (shape.size() == 2) {
    if (absl::ConsumeSuffix(&stem, "_packed")) {
      TryMatrix(checkpoint, stem, extent(0), extent(1) * 8);
    } else if (absl::ConsumeSuffix(&stem, ".qweight")) {
      TryMatrix(checkpoint, stem, extent(1), extent(0) * 8);
      TryMatrix(checkpoint, stem, extent(1) * 8, extent(0));
    } else {
      TryMatrix(checkpoint, stem, extent(0), extent(1));
      TryMatrix(checkpoint, stem, extent(1), extent(0));
      TryMatrix(checkpoint, stem, extent(0), extent(1) * 2);
    }
  } else if (shape.size() == 3) {
    if (absl::ConsumeSuffix(&stem, "_blocks")) {
      TryMatrix(checkpoint, stem, extent(0), extent(1) * 32);
    } else {
      TryStack(checkpoint, stem, extent(0), extent(1), extent(2));
      TryStack(checkpoint, stem, extent(0), extent(1), extent(2) * 2);
    }
  } else if (shape.size() == 4 && absl::ConsumeSuffix(&stem, "_blocks")) {
    TryStack(checkpoint, stem, extent(0), extent(1), extent(2) * 32);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Folder folder;
  const absl::string_view input = moe::TextOf(data, size);
  const size_t zero = std::min(input.find('\0'), input.size());
  folder.Write("config.json", input.substr(0, zero));
  folder.Write("model.safetensors",
               input.substr(std::min(zero + 1, input.size())));
  const auto checkpoint = Checkpoint::Open(folder.path());
  if (!checkpoint.ok()) {
    moe::CheckError(checkpoint.status(), "");
    return 0;
  }
  for (const moe::TensorInfo* tensor : checkpoint->tensors()) {
    TryAll(*checkpoint, *tensor);
  }
  return 0;
}
