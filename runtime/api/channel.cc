#include "argosy/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "argosy/error.h"
#include "runtime/api/process.h"
#include "runtime/base/status.h"

namespace argosy {

struct Channel::Impl {
  worker::ChannelEnd end;
  std::string name;
  size_t unread_begin = 0;          // Receive's thread only
  std::atomic<bool> aborted = false;
  std::mutex reason_mutex;
  std::string reason;

  // Until the socket is ready for `events`, in turns in which a cancelled task is noticed.
  void WaitFor(short events, absl::Time deadline, const char* doing) {
    for (;;) {
      if (aborted) Broken(doing, 0);
      absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) throw GetTimeoutError(fmt::format("channel {}: {} reached its deadline", name, doing));
      if (internal::CurrentCore()->current_cancelled()) throw CancelledError("the task was cancelled while it used a channel");
      pollfd ready{end.fd.get(), events, 0};
      int millis = static_cast<int>(std::min<int64_t>(200, absl::ToInt64Milliseconds(left) + 1));
      if (::poll(&ready, 1, millis) > 0) return;
    }
  }

  [[noreturn]] void Broken(const char* doing, int saved_errno) {
    if (aborted) {
      std::lock_guard lock(reason_mutex);
      throw Error(fmt::format("channel {}: {} ended: aborted: {}", name, doing, reason));
    }
    throw Error(fmt::format("channel {}: {} failed: {}", name, doing,
                            saved_errno == 0 ? "the peer closed it" : std::strerror(saved_errno)));
  }
};

Endpoint ThisEndpoint() {
  const wire::WorkerAddress& address = internal::CurrentCore()->address();
  return {address.worker, address.node, address.unix_path, address.tcp};
}

Channel::Channel() = default;
Channel::Channel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Channel::Channel(Channel&&) noexcept = default;
Channel& Channel::operator=(Channel&&) noexcept = default;
Channel::~Channel() = default;

namespace {

void SetUp(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  // Room for a block of a collective in flight; the kernel may give less.
  int bytes = 4 << 20;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

}  // namespace

Channel Channel::Accept(const std::string& name, Timeout timeout) {
  std::optional<worker::ChannelEnd> end = internal::CurrentCore()->AcceptChannel(name, internal::DeadlineOf(timeout));
  if (!end) {
    if (internal::CurrentCore()->current_cancelled()) throw CancelledError("the task was cancelled while it waited for a channel");
    throw GetTimeoutError(fmt::format("nobody connected to channel {} in time", name));
  }
  auto impl = std::make_unique<Impl>();
  impl->end = std::move(*end);
  impl->name = name;
  SetUp(impl->end.fd.get());
  return Channel(std::move(impl));
}

Channel Channel::Connect(const Endpoint& peer, const std::string& name, Timeout timeout) {
  wire::WorkerAddress address;
  address.worker = peer.worker;
  address.node = peer.node;
  address.unix_path = peer.unix_path;
  address.tcp = peer.tcp;
  absl::StatusOr<worker::ChannelEnd> end = internal::CurrentCore()->OpenChannel(address, name, internal::DeadlineOf(timeout));
  if (!end.ok()) {
    std::string text = fmt::format("channel {}: {}", name, Message(end.status()));
    if (absl::IsDeadlineExceeded(end.status())) throw GetTimeoutError(text);
    throw Error(text);
  }
  auto impl = std::make_unique<Impl>();
  impl->end = std::move(*end);
  impl->name = name;
  SetUp(impl->end.fd.get());
  return Channel(std::move(impl));
}

bool Channel::IsOpen() const { return impl_ != nullptr && impl_->end.fd.ok() && !impl_->aborted; }

void Channel::Send(std::span<const std::byte> bytes, Timeout timeout) {
  if (!impl_) throw Error("the channel was never opened");
  absl::Time deadline = internal::DeadlineOf(timeout);
  while (!bytes.empty()) {
    if (impl_->aborted) impl_->Broken("Send", 0);
    ssize_t n = ::send(impl_->end.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    else if (errno == EAGAIN) impl_->WaitFor(POLLOUT, deadline, "Send");
    else if (errno != EINTR) impl_->Broken("Send", errno == EPIPE ? 0 : errno);
  }
}

void Channel::Receive(std::span<std::byte> bytes, Timeout timeout) {
  if (!impl_) throw Error("the channel was never opened");
  absl::Time deadline = internal::DeadlineOf(timeout);
  if (size_t left = impl_->end.unread.size() - impl_->unread_begin; left > 0 && !bytes.empty()) {
    size_t n = std::min(left, bytes.size());
    std::memcpy(bytes.data(), impl_->end.unread.data() + impl_->unread_begin, n);
    impl_->unread_begin += n;
    bytes = bytes.subspan(n);
  }
  while (!bytes.empty()) {
    if (impl_->aborted) impl_->Broken("Receive", 0);
    ssize_t n = ::recv(impl_->end.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    else if (n == 0) impl_->Broken("Receive", 0);
    else if (errno == EAGAIN) impl_->WaitFor(POLLIN, deadline, "Receive");
    else if (errno != EINTR) impl_->Broken("Receive", errno);
  }
}

void Channel::Abort(std::string_view reason) {
  if (!impl_) return;
  {
    std::lock_guard lock(impl_->reason_mutex);
    if (impl_->aborted) return;
    impl_->reason = std::string(reason);
    impl_->aborted = true;
  }
  ::shutdown(impl_->end.fd.get(), SHUT_RDWR);
}

}  // namespace argosy
