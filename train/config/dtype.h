#pragma once

// Element types of stored tensors, and the conversions that reading and writing weights need.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace argosy::train {

// Every type of the safetensors format with whole bytes an element, in the format's own order: by alignment, so that a file
// sorted by it (descending) keeps each tensor aligned. The library trains kF32 and kBF16; kF16 can be read as a source.
enum class DType : uint8_t {
  kBool, kU8, kI8, kF8E5M2, kF8E4M3, kF8E8M0, kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kC64, kF64, kI64, kU64,
};

// Bytes an element.
int64_t SizeOf(DType dtype);
// "F32", "BF16", ...: the name in a safetensors header.
std::string_view SafetensorsName(DType dtype);
std::optional<DType> DTypeFromSafetensorsName(std::string_view name);
// "float32", "bfloat16", ...: the name in config.json.
std::string_view TorchName(DType dtype);
std::optional<DType> DTypeFromTorchName(std::string_view name);

inline float FloatFromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN. What torch's conversion does.
inline uint16_t Bf16FromFloat(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exact.
float FloatFromF16(uint16_t bits);

// Weights of one type as another, as they lie in a file: float32 and bfloat16.
void ConvertWeights(std::span<const std::byte> in, DType from, std::vector<std::byte>& out, DType to);

}  // namespace argosy::train
