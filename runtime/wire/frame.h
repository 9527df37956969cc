#pragma once

// Frames as bytes, without sockets.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/wire/messages.h"

namespace argosy::wire {

// kBytesReply: a reply whose body is bytes as they lie in memory; it is received into place, so ParseFrame does not take it.
enum class FrameKind : uint8_t { kRequest = 0, kReply = 1, kErrorReply = 2, kNotice = 3, kHandshake = 4, kBytesReply = 5 };

inline constexpr size_t kFrameHeaderBytes = 16;

// What a frame's first bytes say; `bytes` has at least kFrameHeaderBytes.
struct FrameHeader { size_t body_bytes = 0; Method method = Method::kNone; uint8_t kind = 0; uint64_t number = 0; };
FrameHeader ParseHeader(std::string_view bytes);
void AppendHeader(std::string& out, FrameKind kind, Method method, uint64_t number, size_t body_bytes);

struct Frame {
  FrameKind kind = FrameKind::kNotice;
  Method method = Method::kNone;
  uint64_t number = 0;
  std::string_view body;   // points into the parser's bytes
};

void AppendFrame(std::string& out, FrameKind kind, Method method, uint64_t number, std::string_view body);
// The same for a body that was appended to `out` behind kFrameHeaderBytes of room at `begin`: writes the header there.
void FinishFrame(std::string& out, size_t begin, FrameKind kind, Method method, uint64_t number);

// The frame at the start of `bytes`: none when it is not all there yet (`*wanted` is then how many bytes it has in all, 16 when the
// header is not there). INVALID_ARGUMENT for a size above `body_max` or an unknown kind.
absl::StatusOr<std::optional<Frame>> ParseFrame(std::string_view bytes, size_t body_max, size_t* wanted);

}  // namespace argosy::wire
