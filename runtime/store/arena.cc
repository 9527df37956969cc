#include "runtime/store/arena.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "runtime/base/status.h"

namespace argosy::store {

absl::StatusOr<std::unique_ptr<Arena>> Arena::Make(uint64_t size) {
  constexpr uint64_t kPage = 4096;
  size = (size + kPage - 1) / kPage * kPage;
  if (size == 0) return InvalidArgument("an object store needs some memory, not 0 bytes");
  UniqueFd writable(::memfd_create("argosy-objects", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!writable.ok()) return ErrnoStatus(errno, "memfd_create");
  if (::ftruncate(writable.get(), static_cast<off_t>(size)) != 0) {
    return ErrnoStatus(errno, fmt::format("an object store of {} bytes", size));
  }
  // No peer can shrink it under a reader.
  if (::fcntl(writable.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return ErrnoStatus(errno, "seal memfd");
  UniqueFd readable(::open(fmt::format("/proc/self/fd/{}", writable.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!readable.ok()) return ErrnoStatus(errno, "open memfd read-only");
  void* bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, writable.get(), 0);
  if (bytes == MAP_FAILED) return ErrnoStatus(errno, fmt::format("map an object store of {} bytes", size));
  return std::unique_ptr<Arena>(new Arena(std::move(writable), std::move(readable), static_cast<std::byte*>(bytes), size));
}

Arena::~Arena() { ::munmap(bytes_, size_); }

std::span<std::byte> Arena::Bytes(uint64_t offset, uint64_t size) const {
  ARGOSY_CHECK(offset <= size_ && size <= size_ - offset);
  return {bytes_ + offset, size};
}

absl::Status Arena::Reserve(Range range) {
  while (::fallocate(writable_.get(), 0, static_cast<off_t>(range.offset), static_cast<off_t>(range.size)) != 0) {
    if (errno != EINTR) {
      return MakeStatus(absl::StatusCode::kResourceExhausted, "no memory for {} more bytes of the object store: {}", range.size,
                        Message(ErrnoStatus(errno, "fallocate")));
    }
  }
  return absl::OkStatus();
}

absl::Status Arena::Punch(Range range) {
  while (::fallocate(writable_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset),
                     static_cast<off_t>(range.size)) != 0) {
    if (errno != EINTR) return ErrnoStatus(errno, "punch the object store");
  }
  return absl::OkStatus();
}

uint64_t Arena::ResidentBytes() const {
  struct stat info;
  return ::fstat(writable_.get(), &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
}

}  // namespace argosy::store
