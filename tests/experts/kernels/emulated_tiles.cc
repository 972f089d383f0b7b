#include "tests/experts/kernels/emulated_tiles.h"

#if HWY_ARCH_X86_64

#include <array>
#include <bit>
#include <cstring>

#include "experts/base/dtype.h"

namespace moe {

// In place of what the CPU has: AMX on every one that has VNNI, whose kernels
// serve few rows.
const X86Features& CpuFeatures() {
  static const X86Features features = [] {
    X86Features some;
    some.vnni = __builtin_cpu_supports("avx512vnni") != 0;
    some.amx = some.vnni;
    return some;
  }();
  return features;
}

namespace emulated_tiles {
namespace {

constexpr int kMaxRows = 16;
constexpr int kRowBytes = 64;
constexpr int kColumns = kRowBytes / 4;

struct Tile {
  template <typename T>
  T At(int row, int i) const {
    T value;
    std::memcpy(&value, &bytes[row][i * sizeof(T)], sizeof(T));
    return value;
  }
  int32_t SignedByte(int row, int i) const {
    return (bytes[row][i] ^ 0x80) - 0x80;
  }

  std::array<std::array<uint8_t, kRowBytes>, kMaxRows> bytes = {};
  int rows = 0;
  int row_bytes = 0;
};

Tile& TileAt(int tile) {
  thread_local std::array<Tile, 8> tiles;
  return tiles[tile];
}

// Subnormal values count as zero.
float Flushed(float value) {
  constexpr uint32_t kExponent = 0x7f800000;
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & kExponent) != 0 ? value
                                 : std::bit_cast<float>(bits & 0x80000000U);
}

}  // namespace

void LoadConfig(const void* shapes) {
  TileShapes config(0, 0, 0);
  static_assert(sizeof(config) == 64);
  std::memcpy(&config, shapes, sizeof(config));
  for (int i = 0; i < 8; ++i) {
    TileAt(i) = Tile();
    TileAt(i).rows = config.rows[i];
    TileAt(i).row_bytes = config.row_bytes[i];
  }
}

void Zero(int tile) { TileAt(tile).bytes = {}; }

void Load(int tile, const void* rows, int64_t stride) {
  Tile& to = TileAt(tile);
  to.bytes = {};
  for (int row = 0; row < to.rows; ++row) {
    std::memcpy(to.bytes[row].data(),
                static_cast<const uint8_t*>(rows) + row * stride, to.row_bytes);
  }
}

void Store(int tile, void* rows, int64_t stride) {
  const Tile& from = TileAt(tile);
  for (int row = 0; row < from.rows; ++row) {
    std::memcpy(static_cast<uint8_t*>(rows) + row * stride,
                from.bytes[row].data(), from.row_bytes);
  }
}

__attribute__((target("avx2"))) void MultiplyBytes(int c, int a, int b) {
  const Tile& left = TileAt(a);
  std::array<std::array<int32_t, kColumns>, kRowBytes> right;
  for (int k = 0; k < left.row_bytes; ++k) {
    for (int n = 0; n < kColumns; ++n) {
      right[k][n] = TileAt(b).SignedByte(k / 4, n * 4 + k % 4);
    }
  }
  for (int row = 0; row < TileAt(c).rows; ++row) {
    std::array<int32_t, kColumns> sums;
    std::memcpy(sums.data(), TileAt(c).bytes[row].data(), kRowBytes);
    for (int k = 0; k < left.row_bytes; ++k) {
      const int32_t factor = left.SignedByte(row, k);
      for (int n = 0; n < kColumns; ++n) sums[n] += factor * right[k][n];
    }
    std::memcpy(TileAt(c).bytes[row].data(), sums.data(), kRowBytes);
  }
}

__attribute__((target("avx2,fma"))) void MultiplyBF16(int c, int a, int b) {
  const Tile& left = TileAt(a);
  const int steps = left.row_bytes / 2;
  const auto widened = [](const Tile& tile, int row, int i) {
    return Flushed(BF16ToFloat(tile.At<uint16_t>(row, i)));
  };
  std::array<std::array<float, kColumns>, kRowBytes / 2> right;
  for (int k = 0; k < steps; ++k) {
    for (int n = 0; n < kColumns; ++n) {
      right[k][n] = widened(TileAt(b), k / 2, n * 2 + k % 2);
    }
  }
  for (int row = 0; row < TileAt(c).rows; ++row) {
    std::array<float, kColumns> parts[2] = {};  // of even and of odd steps
    for (int k = 0; k < steps; ++k) {
      const float factor = widened(left, row, k);
      for (int n = 0; n < kColumns; ++n) {
        float& part = parts[k % 2][n];
        part = Flushed(__builtin_fmaf(factor, right[k][n], part));
      }
    }
    std::array<float, kColumns> sums;
    std::memcpy(sums.data(), TileAt(c).bytes[row].data(), kRowBytes);
    for (int n = 0; n < kColumns; ++n) {
      const float sum = Flushed(parts[0][n] + parts[1][n]);
      sums[n] = Flushed(Flushed(sums[n]) + sum);
    }
    std::memcpy(TileAt(c).bytes[row].data(), sums.data(), kRowBytes);
  }
}

}  // namespace emulated_tiles
}  // namespace moe

#endif  // HWY_ARCH_X86_64
