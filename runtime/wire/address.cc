#include "runtime/wire/address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>

#include "runtime/base/status.h"

namespace argosy::wire {

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  size_t colon = text.rfind(':');
  HostPort result;
  if (colon != std::string_view::npos) {
    std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    unsigned number = 0;
    auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (!host.empty() && !port.empty() && error == std::errc() && end == port.data() + port.size() && number <= 65535) {
      result.host = std::string(host);
      result.port = static_cast<uint16_t>(number);
      return result;
    }
  }
  return InvalidArgument("'{}' is not an address: want HOST:PORT, e.g. 127.0.0.1:6379 or [::1]:6379", text);
}

std::string JoinHostPort(std::string_view host, uint16_t port) {
  if (host.find(':') != std::string_view::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

absl::StatusOr<SocketAddress> ResolveTcp(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return Unavailable("cannot find host '{}': {}", host, ::gai_strerror(error));
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

absl::StatusOr<SocketAddress> UnixAddress(const std::string& path) {
  SocketAddress address;
  auto* unix_address = reinterpret_cast<sockaddr_un*>(&address.storage);
  if (path.empty() || path.size() >= sizeof unix_address->sun_path) {
    return InvalidArgument("socket path '{}' has {} bytes: want 1 to {}", path, path.size(), sizeof unix_address->sun_path - 1);
  }
  unix_address->sun_family = AF_UNIX;
  std::memcpy(unix_address->sun_path, path.c_str(), path.size() + 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

bool IsLoopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address.storage.ss_family == AF_INET6) {
    auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
  }
  return false;
}

uint16_t PortOf(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

}  // namespace argosy::wire
