#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace argosy::wire {

struct HostPort { std::string host; uint16_t port = 0; };
// "host:port", "[v6]:port". Error names the text and what is right.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string JoinHostPort(std::string_view host, uint16_t port);

struct SocketAddress { sockaddr_storage storage{}; socklen_t length = 0; };
// Numeric addresses need no resolver; names are looked up (blocking).
absl::StatusOr<SocketAddress> ResolveTcp(const std::string& host, uint16_t port);
// INVALID_ARGUMENT when the path is above 107 bytes.
absl::StatusOr<SocketAddress> UnixAddress(const std::string& path);
bool IsLoopback(const SocketAddress& address);
uint16_t PortOf(const SocketAddress& address);

}  // namespace argosy::wire
