#include "train/optim/state_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::train {
namespace {

constexpr int64_t kPage = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Create(const std::string& directory, int64_t bytes) {
  std::string path = directory + "/argosy-optimizer-XXXXXX";
  UniqueFd fd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus(errno, fmt::format("the optimizer's state cannot be kept in {}", directory));
  ::unlink(path.c_str());
  if (int error = ::posix_fallocate(fd.get(), 0, std::max<int64_t>(kPage, bytes)); error != 0) {
    return ErrnoStatus(error, fmt::format("the optimizer's state takes {} bytes in {}", bytes, directory));
  }
  if (bytes == 0) return std::unique_ptr<StateFile>(new StateFile(std::move(fd), {}, directory));
  void* map = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return ErrnoStatus(errno, fmt::format("cannot map {} bytes of a file in {}", bytes, directory));
  return std::unique_ptr<StateFile>(new StateFile(std::move(fd), {static_cast<std::byte*>(map), static_cast<size_t>(bytes)}, directory));
}

StateFile::~StateFile() {
  if (!map_.empty()) ::munmap(map_.data(), map_.size());
}

int64_t StateFile::Rounded(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::span<std::byte> StateFile::Take(int64_t bytes) {
  ARGOSY_CHECK(taken_ + Rounded(bytes) <= static_cast<int64_t>(map_.size()), "{} of {} bytes are taken, {} more are not there", taken_, map_.size(), bytes);
  std::span<std::byte> part = map_.subspan(static_cast<size_t>(taken_), static_cast<size_t>(bytes));
  taken_ += Rounded(bytes);
  return part;
}

void StateFile::Expect(std::span<const std::byte> part) const {
  if (!part.empty()) ::madvise(const_cast<std::byte*>(part.data()), part.size(), MADV_WILLNEED);
}

absl::Status StateFile::Leave(std::span<const std::byte> part) {
  const auto offset = [&](std::span<const std::byte> of) { return static_cast<off64_t>(of.data() - map_.data()); };
  if (!part.empty()) {
    // Out of this process' page table first: pages that are mapped stay in memory.
    ::madvise(const_cast<std::byte*>(part.data()), part.size(), MADV_DONTNEED);
    if (::sync_file_range(fd_.get(), offset(part), static_cast<off64_t>(part.size()), SYNC_FILE_RANGE_WRITE) != 0) {
      return ErrnoStatus(errno, fmt::format("cannot write the optimizer's state in {}", directory_));
    }
  }
  std::span<const std::byte> before = std::exchange(leaving_, part);
  if (before.empty()) return absl::OkStatus();
  const auto size = static_cast<off64_t>(before.size());
  if (::sync_file_range(fd_.get(), offset(before), size, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) != 0) {
    return ErrnoStatus(errno, fmt::format("cannot write the optimizer's state in {}", directory_));
  }
  ::posix_fadvise(fd_.get(), offset(before), size, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

}  // namespace argosy::train
