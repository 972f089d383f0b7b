// Element types of tensors, on disk and on the wire, and their exact
// conversions to float.
//
// Thread-safe: everything here is a pure function.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace moe {

enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF8E4M3,  // 1 sign, 4 exponent, 3 mantissa bits; no infinities (the "fn"
            // variant)
  kF8E5M2,
  kF8E8M0,  // a power of two, used for scales
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

// Size of one element in bytes.
constexpr int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    default:
      return 1;
  }
}

// The name in safetensors files: "F32", "BF16", "F8_E4M3", ...
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
    case DType::kF8E8M0:
      return "F8_E8M0";
    case DType::kF64:
      return "F64";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kI8:
      return "I8";
    case DType::kU64:
      return "U64";
    case DType::kU32:
      return "U32";
    case DType::kU16:
      return "U16";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

// bfloat16: the upper half of a float.
inline float BF16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN (quiet), overflow becomes
// infinity.
inline uint16_t FloatToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// IEEE binary16, including subnormal numbers, infinities and NaN. Without
// branches, so that loops over it become SIMD code, and without subnormal
// floats, which are slow.
inline float F16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  // Exponent and mantissa in float's places; the exponents differ by 112.
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  const uint32_t normal = magnitude + (112U << 23);
  const uint32_t special = magnitude | 0x7f800000U;  // infinity or NaN
  // 2^-14 + mantissa * 2^-24, less 2^-14: exact.
  const auto subnormal = std::bit_cast<uint32_t>(
      std::bit_cast<float>(magnitude + (113U << 23)) - 0x1p-14F);
  uint32_t result = magnitude >= 0x0f800000U ? special : normal;
  result = magnitude < 0x00800000U ? subnormal : result;
  return std::bit_cast<float>(sign | result);
}

// Rounds to nearest, ties to even; overflow becomes infinity, NaN stays NaN.
inline uint16_t FloatToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U)
    return static_cast<uint16_t>(sign | 0x7c00U);  // >= 65520
  if (magnitude < 0x38800000U) {
    // Subnormal result: adding 0.5 makes the hardware round at 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

// OCP 8-bit float E4M3 ("fn"): bias 7, largest 448, 0x7f and 0xff are NaN, no
// infinities.
inline float F8E4M3ToFloat(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80U) << 24;
  const uint32_t exponent = (bits >> 3) & 0xfU;
  const uint32_t mantissa = bits & 0x7U;
  if (exponent == 15 && mantissa == 7)
    return std::bit_cast<float>(sign | 0x7fc00000U);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) |
                              (mantissa << 20));
}

// E8M0: 2^(bits - 127); 0xff is NaN.
inline float F8E8M0ToFloat(uint8_t bits) {
  if (bits == 0xffU) return std::bit_cast<float>(0x7fc00000U);
  if (bits == 0) return 0x1p-127F;
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

// E2M1, the 4-bit element of MXFP4: bit 3 is the sign.
inline float F4E2M1ToFloat(uint8_t code) {
  constexpr float kMagnitudes[8] = {0.0F, 0.5F, 1.0F, 1.5F,
                                    2.0F, 3.0F, 4.0F, 6.0F};
  const float magnitude = kMagnitudes[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

// Reads a T from memory of any alignment.
template <typename T>
T LoadUnaligned(const void* source) {
  T value;
  std::memcpy(&value, source, sizeof(T));
  return value;
}

}  // namespace moe
