#include "runtime/node/health_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/wire/address.h"

namespace argosy::node {
namespace {

constexpr size_t kPeersMax = 64;
constexpr size_t kRequestMax = 8 * 1024;
constexpr absl::Duration kPeerTime = absl::Seconds(5);

std::string Response(std::string_view request) {
  std::string_view line = request.substr(0, request.find("\r\n"));
  bool healthy = false;
  for (std::string_view path : {"/healthz", "/health", "/api/local_raylet_healthz", "/api/healthz"}) {
    healthy |= line.starts_with(fmt::format("GET {} ", path));
  }
  std::string_view body = healthy ? "success" : "not found";
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                     healthy ? "200 OK" : "404 Not Found", body.size(), body);
}

}  // namespace

struct HealthServer::Peer {
  Peer(async::Loop& loop, UniqueFd fd) : fd(std::move(fd)), watch(loop, this->fd.get()), timer(loop) {}
  UniqueFd fd;
  std::string request;
  async::FdWatch watch;
  async::Timer timer;
};

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(async::Loop& loop, const std::string& ip, uint16_t port) {
  ARGOSY_ASSIGN_OR_RETURN(wire::SocketAddress address, wire::ResolveTcp(ip, port));
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return ErrnoStatus(errno, "socket");
  int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) != 0 || ::listen(fd.get(), 16) != 0) {
    return ErrnoStatus(errno, fmt::format("agent port {}:{}", ip, port));
  }
  wire::SocketAddress bound;
  bound.length = sizeof bound.storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) return ErrnoStatus(errno, "getsockname");
  return std::unique_ptr<HealthServer>(new HealthServer(loop, std::move(fd), wire::PortOf(bound)));
}

HealthServer::HealthServer(async::Loop& loop, UniqueFd listener, uint16_t port)
    : loop_(loop), listener_(std::move(listener)), port_(port), watch_(std::make_unique<async::FdWatch>(loop, listener_.get())) {
  watch_->OnReadable([this] {
    Accept();
    return true;
  });
}

HealthServer::~HealthServer() { watch_.reset(); }

void HealthServer::Accept() {
  for (;;) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.ok()) return;
    if (peers_.size() >= kPeersMax) continue;
    int key = fd.get();
    auto& peer = peers_[key] = std::make_unique<Peer>(loop_, std::move(fd));
    peer->timer.After(kPeerTime, [this, key] { peers_.erase(key); });
    peer->watch.OnReadable([this, key, peer = peer.get()] {
      char buffer[2048];
      ssize_t n = ::recv(key, buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
      if (n > 0) peer->request.append(buffer, static_cast<size_t>(n));
      if (n > 0 && peer->request.find("\r\n\r\n") == std::string::npos && peer->request.size() < kRequestMax) return true;
      if (n > 0) {
        std::string response = Response(peer->request);
        if (::send(key, response.data(), response.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) peer->request.clear();
      }
      peers_.erase(key);
      return false;
    });
  }
}

}  // namespace argosy::node
