#include "experts/expert_fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/types/span.h"
#include "experts/pack_stored.h"

namespace moe {
namespace {

// Changes with the arithmetic of the experts: processes of two releases that
// round differently are told apart.
constexpr uint64_t kArithmeticVersion = 1;

constexpr int64_t kSampleColumns = 64;

// FNV-1a, 64 bits: the same on every machine, unlike absl::Hash.
class Hash {
 public:
  template <typename T>
  void Add(T value) {
    std::array<uint8_t, sizeof(T)> bytes;
    std::memcpy(bytes.data(), &value, sizeof(T));
    for (const uint8_t byte : bytes) {
      state_ = (state_ ^ byte) * 0x100000001b3ULL;
    }
  }
  void Add(absl::Span<const float> values) {
    Add(values.size());
    for (const float value : values) Add(value);
  }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

void AddSample(const StoredMatrix& matrix, Hash& hash) {
  if (matrix.data == nullptr) return;  // classic experts have no gate_proj
  std::array<float, kSampleColumns> row;
  const auto count = static_cast<size_t>(std::min(kSampleColumns, matrix.cols));
  for (const int64_t r : {matrix.rows / 3, matrix.rows - 1}) {
    const int64_t first = (matrix.cols - static_cast<int64_t>(count)) / 2;
    matrix.Read(r, first, absl::MakeSpan(row.data(), count));
    hash.Add(absl::MakeConstSpan(row.data(), count));
  }
}

}  // namespace

uint64_t ExpertFingerprint(const ExpertSpec& spec, const StoredExpert& expert,
                           ExpertEngine engine, WeightFormat format) {
  Hash hash;
  hash.Add(kArithmeticVersion);
  hash.Add(spec.d_model);
  hash.Add(spec.d_ff);
  hash.Add(spec.gated);
  hash.Add(spec.has_bias);
  hash.Add(spec.activation.activation);
  hash.Add(spec.activation.beta);
  hash.Add(spec.activation.limit);
  hash.Add(spec.activation.up_offset);
  hash.Add(engine);
  for (const Projection projection :
       {Projection::kGate, Projection::kUp, Projection::kDown}) {
    const StoredMatrix& matrix = expert.Weights(projection);
    hash.Add(matrix.rows);
    hash.Add(matrix.cols);
    hash.Add(matrix.coding);
    hash.Add(matrix.dtype);
    if (matrix.data != nullptr) hash.Add(LayoutFor(format, matrix).format);
    AddSample(matrix, hash);
    hash.Add(expert.Bias(projection));
  }
  return hash.state();
}

}  // namespace moe
