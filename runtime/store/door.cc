#include "runtime/store/door.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/time/clock.h"
#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/store/arena.h"

namespace argosy::store {
namespace {

constexpr char kMagic[8] = {'A', 'R', 'G', 'O', 'S', 'Y', 'S', 'M'};

// What comes with the two descriptors.
struct Greeting {
  char magic[8];
  uint16_t major;
  uint16_t minor;
  uint32_t zero;
  uint64_t arena_size;
};
static_assert(sizeof(Greeting) == 24);

absl::StatusOr<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return InvalidArgument("a socket path has 1 to {} bytes, not {}: {}", sizeof address.sun_path - 1, path.size(), path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaMapping>> ArenaMapping::Connect(const std::string& door_path, absl::Duration timeout) {
  ARGOSY_ASSIGN_OR_RETURN(sockaddr_un address, Address(door_path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return ErrnoStatus(errno, "socket");
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return Unavailable("{}", Message(ErrnoStatus(errno, "connect to the object store's door " + door_path)));
  }
  pollfd waited{fd.get(), POLLIN, 0};
  int ready;
  do {
    ready = ::poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return Unavailable("the object store's door {} did not answer within {}", door_path, absl::FormatDuration(timeout));

  Greeting greeting{};
  iovec part{&greeting, sizeof greeting};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(fd.get(), &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ErrnoStatus(errno, "receive from the object store's door");
  UniqueFd writable_fd;
  UniqueFd readable_fd;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(2 * sizeof(int))) continue;
    int fds[2];
    std::memcpy(fds, CMSG_DATA(header), sizeof fds);
    writable_fd.Reset(fds[0]);
    readable_fd.Reset(fds[1]);
  }
  if (n != sizeof greeting || std::memcmp(greeting.magic, kMagic, sizeof kMagic) != 0 || !readable_fd.ok()) {
    return Unavailable("{} closed or is not the door of an object store", door_path);
  }
  if (greeting.major != kProtocolMajor) {
    return FailedPrecondition("the object store speaks version {}.{}, this process {}.{}", greeting.major, greeting.minor, kProtocolMajor,
                              kProtocolMinor);
  }
  struct stat info;
  if (::fstat(writable_fd.get(), &info) != 0) return ErrnoStatus(errno, "stat of the arena");
  if (static_cast<uint64_t>(info.st_size) != greeting.arena_size) {
    return Internal("the arena has {} bytes, its door says {}", info.st_size, greeting.arena_size);
  }
  void* writable = ::mmap(nullptr, greeting.arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, writable_fd.get(), 0);
  if (writable == MAP_FAILED) return ErrnoStatus(errno, "map the arena");
  void* readable = ::mmap(nullptr, greeting.arena_size, PROT_READ, MAP_SHARED | MAP_NORESERVE, readable_fd.get(), 0);
  if (readable == MAP_FAILED) {
    absl::Status status = ErrnoStatus(errno, "map the arena read-only");
    ::munmap(writable, greeting.arena_size);
    return status;
  }
  return std::unique_ptr<ArenaMapping>(
      new ArenaMapping(static_cast<std::byte*>(writable), static_cast<const std::byte*>(readable), greeting.arena_size));
}

ArenaMapping::~ArenaMapping() {
  ::munmap(writable_, size_);
  ::munmap(const_cast<std::byte*>(readable_), size_);
}

absl::StatusOr<std::span<std::byte>> ArenaMapping::WritableSpan(uint64_t offset, uint64_t size) const {
  if (offset > size_ || size > size_ - offset) return InvalidArgument("[{}, +{}) is outside the arena of {} bytes", offset, size, size_);
  return std::span<std::byte>(writable_ + offset, size);
}

void ArenaMapping::Write(std::byte* to, const std::byte* from, size_t size) {
  while (size > 0) {
    const size_t at = static_cast<size_t>(to - writable_) % kPiece;
    const size_t n = std::min(size, kPiece - at);
    // A part of a piece is not worth a mark of its own. That the call fails, or that the pages were given back since, costs the faults alone.
    if (n == kPiece && !written_[static_cast<size_t>(to - writable_) / kPiece].exchange(true, std::memory_order_relaxed)) {
      (void)::madvise(to, n, MADV_POPULATE_WRITE);
    }
    std::memcpy(to, from, n);
    to += n;
    from += n;
    size -= n;
  }
}

absl::StatusOr<std::span<const std::byte>> ArenaMapping::ReadableSpan(uint64_t offset, uint64_t size) const {
  if (offset > size_ || size > size_ - offset) return InvalidArgument("[{}, +{}) is outside the arena of {} bytes", offset, size, size_);
  return std::span<const std::byte>(readable_ + offset, size);
}

absl::StatusOr<std::unique_ptr<Door>> Door::Open(async::Loop& loop, const Arena& arena, const std::string& path) {
  ARGOSY_ASSIGN_OR_RETURN(sockaddr_un address, Address(path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return ErrnoStatus(errno, "socket");
  ::unlink(path.c_str());
  mode_t old_mask = ::umask(0177);
  int bound = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  int bind_errno = errno;
  ::umask(old_mask);
  if (bound != 0) return ErrnoStatus(bind_errno, "bind " + path);
  if (::listen(fd.get(), 128) != 0) return ErrnoStatus(errno, "listen on " + path);
  return std::unique_ptr<Door>(new Door(loop, arena, path, std::move(fd)));
}

Door::Door(async::Loop& loop, const Arena& arena, std::string path, UniqueFd listener)
    : arena_(arena), path_(std::move(path)), listener_(std::move(listener)),
      watch_(std::make_unique<async::FdWatch>(loop, listener_.get())) {
  watch_->OnReadable([this] {
    Accept();
    return true;
  });
}

Door::~Door() {
  watch_.reset();
  ::unlink(path_.c_str());
}

void Door::Accept() {
  for (;;) {
    UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer.ok()) return;
    ucred credentials{};
    socklen_t length = sizeof credentials;
    if (::getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.uid != ::geteuid()) {
      spdlog::warn("a process of user {} came to the object store's door and was turned away", credentials.uid);
      continue;
    }
    Greeting greeting{};
    std::memcpy(greeting.magic, kMagic, sizeof kMagic);
    greeting.major = kProtocolMajor;
    greeting.minor = kProtocolMinor;
    greeting.arena_size = arena_.size();
    iovec part{&greeting, sizeof greeting};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const int fds[2] = {arena_.writable_fd(), arena_.readable_fd()};
    std::memcpy(CMSG_DATA(header), fds, sizeof fds);
    // A fresh socket's buffer takes it whole.
    if (::sendmsg(peer.get(), &message, MSG_NOSIGNAL) != sizeof greeting) {
      spdlog::warn("a process came to the object store's door and left");
    }
  }
}

}  // namespace argosy::store
