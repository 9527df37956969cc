#include "train/config/dtype.h"

#include <array>
#include <cmath>
#include <cstring>

namespace argosy::train {
namespace {

struct DtypeName {
  DType dtype;
  int64_t size;
  std::string_view safetensors;
  std::string_view torch;
};

constexpr std::array<DtypeName, 17> kDtypeNames = {{
    {DType::kBool, 1, "BOOL", "bool"},
    {DType::kU8, 1, "U8", "uint8"},
    {DType::kI8, 1, "I8", "int8"},
    {DType::kF8E5M2, 1, "F8_E5M2", "float8_e5m2"},
    {DType::kF8E4M3, 1, "F8_E4M3", "float8_e4m3fn"},
    {DType::kF8E8M0, 1, "F8_E8M0", "float8_e8m0fnu"},
    {DType::kI16, 2, "I16", "int16"},
    {DType::kU16, 2, "U16", "uint16"},
    {DType::kF16, 2, "F16", "float16"},
    {DType::kBF16, 2, "BF16", "bfloat16"},
    {DType::kI32, 4, "I32", "int32"},
    {DType::kU32, 4, "U32", "uint32"},
    {DType::kF32, 4, "F32", "float32"},
    {DType::kC64, 8, "C64", "complex64"},
    {DType::kF64, 8, "F64", "float64"},
    {DType::kI64, 8, "I64", "int64"},
    {DType::kU64, 8, "U64", "uint64"},
}};

constexpr const DtypeName& RowOf(DType dtype) { return kDtypeNames[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t SizeOf(DType dtype) { return RowOf(dtype).size; }
std::string_view SafetensorsName(DType dtype) { return RowOf(dtype).safetensors; }
std::string_view TorchName(DType dtype) { return RowOf(dtype).torch; }

std::optional<DType> DTypeFromSafetensorsName(std::string_view name) {
  for (const DtypeName& row : kDtypeNames) {
    if (row.safetensors == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromTorchName(std::string_view name) {
  // Very old files say "torch.float16".
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const DtypeName& row : kDtypeNames) {
    if (row.torch == name) return row.dtype;
  }
  return std::nullopt;
}

float FloatFromF16(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Zero and subnormals: mantissa * 2^-24.
  float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

void ConvertWeights(std::span<const std::byte> in, DType from, std::vector<std::byte>& out, DType to) {
  size_t count = in.size() / SizeOf(from);
  out.resize(count * SizeOf(to));
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
  } else if (from == DType::kBF16) {
    for (size_t i = 0; i < count; ++i) {
      uint16_t bits;
      std::memcpy(&bits, in.data() + 2 * i, 2);
      float value = FloatFromBf16(bits);
      std::memcpy(out.data() + 4 * i, &value, 4);
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, in.data() + 4 * i, 4);
      uint16_t bits = Bf16FromFloat(value);
      std::memcpy(out.data() + 2 * i, &bits, 2);
    }
  }
}

}  // namespace argosy::train
