#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace argosy::train {

// CRC-32C (Castagnoli, RFC 3720) of `bytes` appended to what gave `crc`; the first call passes 0.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

// Of A followed by B, from those of A and of B, which has `second_bytes`.
uint32_t CombineCrc32c(uint32_t first, uint32_t second, int64_t second_bytes);

}  // namespace argosy::train
