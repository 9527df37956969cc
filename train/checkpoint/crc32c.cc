#include "train/checkpoint/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace argosy::train {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // reflected

// table[k][b]: the effect of byte b followed by k zero bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][b] = crc;
  }
  for (uint32_t b = 0; b < 256; ++b) {
    for (size_t k = 1; k < 8; ++k) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xffu];
  }
  return tables;
}
constexpr auto kTables = MakeTables();

uint32_t ExtendPortable(uint32_t crc, const std::byte* data, size_t size) {
  while (size >= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xffu];
    data += 8;
    size -= 8;
  }
  for (; size > 0; ++data, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*data)) & 0xffu];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, const std::byte* data, size_t size) {
  uint64_t wide = crc;
  while (size >= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
    data += 8;
    size -= 8;
  }
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(*data));
  return crc;
}
#endif

}  // namespace

namespace {

// Polynomials over two elements modulo the checksum's, bit 31 for 1.
uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1u) != 0 ? kPolynomial : 0u);
  }
  return product;
}

}  // namespace

uint32_t CombineCrc32c(uint32_t first, uint32_t second, int64_t second_bytes) {
  // What `second_bytes` zeros make of the first: times x^8 for each.
  uint32_t power = 0x80000000u, square = 0x80000000u >> 8;
  for (int64_t n = second_bytes; n > 0; n >>= 1) {
    if ((n & 1) != 0) power = Multiply(power, square);
    square = Multiply(square, square);
  }
  return Multiply(power, first) ^ second;
}

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~ExtendSse42(crc, bytes.data(), bytes.size());
#endif
  return ~ExtendPortable(crc, bytes.data(), bytes.size());
}

}  // namespace argosy::train
