#pragma once

// A value's bytes as they lie in a message or in the object store: the encoded body and its out-of-band buffers in one piece.
//
//   u32 buffer count n | n = 0: body to the end
//                      | n > 0: u32 0, u64 body size, n x (u64 offset, u64 size), body, buffers each aligned to 64     (little endian)

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/base/codec.h"

namespace argosy::worker {

size_t PackedSize(std::string_view body, const std::vector<Buffer>& buffers);
// `out` has exactly PackedSize bytes. `copy`: in place of memcpy, for what is large, from several threads.
using CopyBytes = std::function<void(std::byte* to, const std::byte* from, size_t size)>;
void PackInto(std::span<std::byte> out, std::string_view body, const std::vector<Buffer>& buffers, const CopyBytes& copy = nullptr);
std::string Pack(std::string_view body, const std::vector<Buffer>& buffers);

// Points into the packed bytes; each buffer holds `owner`.
struct Unpacked {
  std::string_view body;
  std::vector<Buffer> buffers;
};
// INVALID_ARGUMENT when the bytes are not a packed value.
absl::StatusOr<Unpacked> Unpack(std::string_view bytes, std::shared_ptr<const void> owner);

}  // namespace argosy::worker
