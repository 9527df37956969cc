#include "runtime/node/job_log.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace argosy::node {
namespace {

constexpr uint64_t kPunchUnit = 64 * 1024;   // a multiple of every file system's block

}  // namespace

absl::StatusOr<JobLog> JobLog::Create(const std::string& path, Options options) {
  UniqueFd append(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  if (!append.ok()) return ErrnoStatus(errno, path);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.ok()) return ErrnoStatus(errno, path);
  return JobLog(path, std::move(append), std::move(file), options);
}

absl::Status JobLog::Append(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    ssize_t n = ::write(append_.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path_);
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<JobLog::Chunk> JobLog::Next() {
  Chunk chunk;
  chunk.offset = sent_;
  uint64_t room = options_.unacknowledged_max - std::min(options_.unacknowledged_max, sent_ - acknowledged_);
  uint64_t want = std::min(options_.chunk_bytes, room);
  if (want == 0) return chunk;
  struct stat info;
  if (::fstat(file_.get(), &info) != 0) return ErrnoStatus(errno, path_);
  uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size <= sent_) return chunk;
  chunk.data.resize(std::min(want, size - sent_));
  ssize_t n;
  do {
    n = ::pread(file_.get(), chunk.data.data(), chunk.data.size(), static_cast<off_t>(sent_));
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ErrnoStatus(errno, path_);
  chunk.data.resize(static_cast<size_t>(n));
  sent_ += static_cast<uint64_t>(n);
  return chunk;
}

void JobLog::Acknowledge(uint64_t end) {
  // A head that came back may say less than it did, or more than this stream sent.
  if (end <= acknowledged_) return;
  acknowledged_ = end;
  sent_ = std::max(sent_, acknowledged_);
  uint64_t until = acknowledged_ / kPunchUnit * kPunchUnit;
  if (until <= punched_) return;
  // Not every file system can; then the bytes stay until the job is done.
  if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(punched_),
                  static_cast<off_t>(until - punched_)) != 0) {
    spdlog::debug("{}: no hole was punched", path_);
  }
  punched_ = until;
}

absl::StatusOr<bool> JobLog::IsShipped() const {
  struct stat info;
  if (::fstat(file_.get(), &info) != 0) return ErrnoStatus(errno, path_);
  return acknowledged_ >= static_cast<uint64_t>(info.st_size);
}

void JobLog::Remove() { ::unlink(path_.c_str()); }

}  // namespace argosy::node
