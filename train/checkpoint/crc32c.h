#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace argosy::train {

// CRC-32C (Castagnoli, RFC 3720) of `bytes` appended to what gave `crc`; the first call passes 0.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace argosy::train
