#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace argosy::train {

using Sha256Digest = std::array<uint8_t, 32>;

// FIPS 180-4, and RFC 2104 over it: for the few bytes that are signed.
Sha256Digest Sha256(std::string_view bytes);
Sha256Digest HmacSha256(std::string_view key, std::string_view bytes);
std::string Hex(const Sha256Digest& digest);
inline std::string_view BytesOf(const Sha256Digest& digest) { return {reinterpret_cast<const char*>(digest.data()), digest.size()}; }

}  // namespace argosy::train
