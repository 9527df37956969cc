#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "absl/time/clock.h"
#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "runtime/wire/address.h"
#include "runtime/wire/connection.h"
#include "runtime/wire/handshake.h"

namespace argosy::wire {
namespace {

std::string Nonce() { return std::string(TaskId::Random().Bytes()); }

void SetTcpOptions(int fd) {
  int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

absl::Status CheckPeerUser(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return ErrnoStatus(errno, "SO_PEERCRED");
  if (peer.uid != ::geteuid()) {
    return absl::PermissionDeniedError(ToAbsl(fmt::format("the peer runs as user {}, this process as {}", peer.uid, ::geteuid())));
  }
  return absl::OkStatus();
}

// Connects without blocking the loop, then shakes hands.
class Connector : public std::enable_shared_from_this<Connector> {
 public:
  Connector(async::Loop& loop, SocketAddress address, std::string name, ConnectOptions options, Connected done)
      : loop_(loop), address_(address), name_(std::move(name)), options_(std::move(options)), done_(std::move(done)), timer_(loop),
        deadline_(absl::Now() + options_.timeout) {}

  void Start() {
    bool is_unix = address_.storage.ss_family == AF_UNIX;
    fd_.Reset(::socket(address_.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_.ok()) return Finish(ErrnoStatus(errno, "socket"));
    if (!is_unix) SetTcpOptions(fd_.get());
    auto* raw = reinterpret_cast<const sockaddr*>(&address_.storage);
    if (::connect(fd_.get(), raw, address_.length) == 0) return ShakeHands();
    if (errno == EAGAIN && is_unix && absl::Now() < deadline_) {
      // The listener's queue is full: again shortly.
      return timer_.After(absl::Milliseconds(2), [self = shared_from_this()] { self->Start(); });
    }
    if (errno != EINPROGRESS) return Finish(Failed(errno));
    watch_ = std::make_unique<async::FdWatch>(loop_, fd_.get());
    watch_->OnceWritable([self = shared_from_this()] {
      self->watch_->Stop();
      self->timer_.Cancel();
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(self->fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return self->Finish(self->Failed(error));
      self->ShakeHands();
    });
    timer_.After(options_.timeout, [self = shared_from_this()] { self->Finish(self->Failed(ETIMEDOUT)); });
  }

 private:
  absl::Status Failed(int error) {
    return Unavailable("cannot connect to {}: {}", name_, Message(ErrnoStatus(error, "connect")));
  }

  void ShakeHands() {
    bool is_unix = address_.storage.ss_family == AF_UNIX;
    if (is_unix) {
      if (absl::Status status = CheckPeerUser(fd_.get()); !status.ok()) return Finish(status);
    }
    HandshakeMachine::Options machine;
    machine.is_client = true;
    machine.self = options_.self;
    machine.token = options_.token;
    machine.needs_proof = !is_unix;
    machine.nonce = Nonce();
    Handshaker::Start(loop_, std::move(fd_), std::move(machine), options_.timeout,
                      [self = shared_from_this()](absl::StatusOr<std::shared_ptr<Connection>> result) {
                        if (!result.ok()) return self->Finish(Annotate(result.status(), self->name_));
                        self->Finish(std::move(result));
                      });
  }

  void Finish(absl::StatusOr<std::shared_ptr<Connection>> result) {
    timer_.Cancel();
    if (watch_) watch_->Stop();
    fd_.Reset();
    if (done_) std::exchange(done_, nullptr)(std::move(result));
  }

  async::Loop& loop_;
  SocketAddress address_;
  std::string name_;
  ConnectOptions options_;
  Connected done_;
  UniqueFd fd_;
  std::unique_ptr<async::FdWatch> watch_;
  async::Timer timer_;
  absl::Time deadline_;
};

void ConnectTo(async::Loop& loop, absl::StatusOr<SocketAddress> address, std::string name, ConnectOptions options, Connected done) {
  if (!address.ok()) return loop.Post([done = std::move(done), status = address.status()] { done(status); });
  auto connector = std::make_shared<Connector>(loop, *address, std::move(name), std::move(options), std::move(done));
  loop.Post([connector] { connector->Start(); });
}

}  // namespace

void ConnectUnix(async::Loop& loop, const std::string& path, ConnectOptions options, Connected done) {
  ConnectTo(loop, UnixAddress(path), path, std::move(options), std::move(done));
}

void ConnectTcp(async::Loop& loop, const std::string& host_port, ConnectOptions options, Connected done) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(host_port);
  absl::StatusOr<SocketAddress> address =
      parsed.ok() ? ResolveTcp(parsed->host, parsed->port) : absl::StatusOr<SocketAddress>(parsed.status());
  ConnectTo(loop, std::move(address), host_port, std::move(options), std::move(done));
}

void ConnectWorker(async::Loop& loop, const WorkerAddress& address, bool same_host, ConnectOptions options, Connected done) {
  if (same_host && !address.unix_path.empty() && ::access(address.unix_path.str().c_str(), F_OK) == 0) {
    return ConnectUnix(loop, address.unix_path, std::move(options), std::move(done));
  }
  ConnectTcp(loop, address.tcp, std::move(options), std::move(done));
}

struct Listener::Impl : std::enable_shared_from_this<Listener::Impl> {
  Impl(async::Loop& loop, ListenOptions options, Accepted accepted)
      : loop(loop), options(std::move(options)), accepted(std::move(accepted)), pause(loop) {}

  void Start() {
    watch = std::make_unique<async::FdWatch>(loop, fd.get());
    watch->OnReadable([weak = weak_from_this()] {
      auto self = weak.lock();
      return self && self->Accept();
    });
  }

  bool Accept() {
    for (;;) {
      UniqueFd client(::accept4(fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!client.ok()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN) return true;
        // Out of descriptors or memory: the queue stays readable, so look again later instead of spinning.
        pause.After(absl::Milliseconds(100), [this] { Start(); });
        return false;
      }
      if (unproven.size() >= options.unproven_max) continue;   // closes it
      if (is_unix) {
        if (!CheckPeerUser(client.get()).ok()) continue;
      } else {
        SetTcpOptions(client.get());
      }
      HandshakeMachine::Options machine;
      machine.self = options.self;
      machine.token = options.token;
      machine.needs_proof = !is_unix;
      machine.nonce = Nonce();
      auto slot = std::make_shared<std::shared_ptr<Handshaker>>();
      *slot = Handshaker::Start(loop, std::move(client), std::move(machine), options.handshake_timeout,
                                [weak = weak_from_this(), slot](absl::StatusOr<std::shared_ptr<Connection>> result) {
                                  auto self = weak.lock();
                                  std::shared_ptr<Handshaker> handshaker = std::exchange(*slot, nullptr);
                                  if (!self) return;
                                  self->unproven.erase(handshaker);
                                  if (result.ok()) self->accepted(*std::move(result));
                                });
      if (*slot) unproven.insert(*slot);
    }
  }

  async::Loop& loop;
  ListenOptions options;
  Accepted accepted;
  async::Timer pause;
  bool is_unix = false;
  std::string path;
  std::string address;
  uint16_t port = 0;
  UniqueFd fd;
  std::unique_ptr<async::FdWatch> watch;
  std::set<std::shared_ptr<Handshaker>> unproven;
};

Listener::Listener(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Listener::~Listener() {
  if (impl_->watch) impl_->watch->Stop();
  impl_->pause.Cancel();
  for (const auto& handshaker : std::exchange(impl_->unproven, {})) handshaker->Cancel();
  if (impl_->is_unix && impl_->fd.ok()) ::unlink(impl_->path.c_str());
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Unix(async::Loop& loop, const std::string& path, ListenOptions options,
                                                         Accepted accepted) {
  ARGOSY_ASSIGN_OR_RETURN(SocketAddress address, UnixAddress(path));
  auto impl = std::make_shared<Impl>(loop, std::move(options), std::move(accepted));
  impl->is_unix = true;
  impl->path = impl->address = path;
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return ErrnoStatus(errno, "socket");
  ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) != 0) return ErrnoStatus(errno, "bind " + path);
  if (::chmod(path.c_str(), 0600) != 0) return ErrnoStatus(errno, "chmod " + path);
  if (::listen(fd.get(), 1024) != 0) return ErrnoStatus(errno, "listen " + path);
  impl->fd = std::move(fd);
  impl->Start();
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Tcp(async::Loop& loop, const std::string& host, uint16_t port,
                                                        ListenOptions options, Accepted accepted) {
  ARGOSY_ASSIGN_OR_RETURN(SocketAddress address, ResolveTcp(host, port));
  if (options.token.IsEmpty() && !IsLoopback(address)) {
    return absl::PermissionDeniedError(
        ToAbsl(fmt::format("listening on {} without a cluster token would let anyone in: use a token, or a loopback address", host)));
  }
  auto impl = std::make_shared<Impl>(loop, std::move(options), std::move(accepted));
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return ErrnoStatus(errno, "socket");
  int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  std::string name = JoinHostPort(host, port);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), address.length) != 0) return ErrnoStatus(errno, "bind " + name);
  if (::listen(fd.get(), 1024) != 0) return ErrnoStatus(errno, "listen on " + name);
  SocketAddress bound;
  bound.length = sizeof bound.storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) return ErrnoStatus(errno, "getsockname");
  impl->port = PortOf(bound);
  impl->address = JoinHostPort(host, impl->port);
  impl->fd = std::move(fd);
  impl->Start();
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

uint16_t Listener::port() const { return impl_->port; }
const std::string& Listener::address() const { return impl_->address; }

}  // namespace argosy::wire
