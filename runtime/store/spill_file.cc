#include "runtime/store/spill_file.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/status.h"

namespace argosy::store {
namespace {

// One call moves so much at most.
constexpr size_t kPieceMax = 64u << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<SpillFile>> SpillFile::Open(const std::string& folder) {
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.ok()) {
    // A file system without such files: the name goes at once.
    std::string path = folder + "/argosy-spill-XXXXXX";
    fd.Reset(::mkostemp(path.data(), O_CLOEXEC));
    if (!fd.ok()) return ErrnoStatus(errno, fmt::format("a file to spill objects into, in {}", folder));
    if (::unlink(path.c_str()) != 0) return ErrnoStatus(errno, path);
  }
  return std::unique_ptr<SpillFile>(new SpillFile(std::move(fd), folder));
}

absl::Status SpillFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::pwrite(fd_.get(), bytes.data(), std::min(bytes.size(), kPieceMax), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
      return MakeStatus(absl::StatusCode::kResourceExhausted, "spilling to {}: {}", folder_, Message(ErrnoStatus(errno, "write")));
    }
    if (n < 0) return ErrnoStatus(errno, fmt::format("spilling to {}", folder_));
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status SpillFile::Read(uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::pread(fd_.get(), bytes.data(), std::min(bytes.size(), kPieceMax), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("reading back what was spilled to {}", folder_));
    if (n == 0) return MakeStatus(absl::StatusCode::kDataLoss, "what was spilled to {} is shorter than it was", folder_);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

void SpillFile::Free(Range range) {
  // Where the file system cannot do it the range is used again later; the disk has it back when the file is empty.
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset), static_cast<off_t>(range.size));
}

void SpillFile::FreeAll() {
  while (::ftruncate(fd_.get(), 0) != 0 && errno == EINTR) {
  }
}

}  // namespace argosy::store
