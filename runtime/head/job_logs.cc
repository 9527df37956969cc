#include "runtime/head/job_logs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace argosy::head {
namespace {

constexpr uint64_t kPage = 4096;

struct Extent { uint64_t first = 0; uint64_t end = 0; };

absl::StatusOr<Extent> ExtentOf(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, path);
  Extent extent{0, static_cast<uint64_t>(info.st_size)};
  if (extent.end == 0) return extent;
  // What was punched out at the front is a hole. A file of nothing but a hole has lost everything.
  off_t data = ::lseek(fd, 0, SEEK_DATA);
  if (data >= 0) extent.first = static_cast<uint64_t>(data);
  else if (errno == ENXIO) extent.first = extent.end;
  return extent;
}

absl::StatusOr<uint64_t> AppendTo(const std::string& path, uint64_t offset, const std::string& data, uint64_t bytes_max) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.ok()) return ErrnoStatus(errno, path);
  ARGOSY_ASSIGN_OR_RETURN(Extent extent, ExtentOf(fd.get(), path));
  if (offset > extent.end) return extent.end;
  uint64_t skip = std::min<uint64_t>(extent.end - offset, data.size());
  for (uint64_t at = skip; at < data.size();) {
    ssize_t n = ::pwrite(fd.get(), data.data() + at, data.size() - at, static_cast<off_t>(offset + at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    at += static_cast<uint64_t>(n);
  }
  uint64_t end = std::max(extent.end, offset + data.size());
  if (end - extent.first > bytes_max) {
    // A quarter at a time, so that this is rare.
    uint64_t first = (end - bytes_max * 3 / 4) / kPage * kPage;
    ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(first));
  }
  return end;
}

absl::StatusOr<JobLogs::Chunk> ReadFrom(const std::string& path, uint64_t offset, uint64_t size_max) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok() && errno == ENOENT) return JobLogs::Chunk{};
  if (!fd.ok()) return ErrnoStatus(errno, path);
  ARGOSY_ASSIGN_OR_RETURN(Extent extent, ExtentOf(fd.get(), path));
  JobLogs::Chunk chunk{std::clamp(offset, extent.first, extent.end), "", extent.first, extent.end};
  chunk.data.resize(std::min(size_max, extent.end - chunk.offset));
  size_t have = 0;
  while (have < chunk.data.size()) {
    ssize_t n = ::pread(fd.get(), chunk.data.data() + have, chunk.data.size() - have, static_cast<off_t>(chunk.offset + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  chunk.data.resize(have);
  return chunk;
}

}  // namespace

absl::Status JobLogs::Open() {
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(options_.folder, 0700));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder, error)) {
    if (entry.path().extension() == ".log") ends_[entry.path().stem().string()] = entry.file_size(error);
  }
  if (error) return ErrnoStatus(error.value(), options_.folder);
  return absl::OkStatus();
}

void JobLogs::Append(const std::string& name, uint64_t offset, std::string data, Done<uint64_t> done) {
  disk_.Post([this, name, offset, data = std::move(data), done = std::move(done)] {
    absl::StatusOr<uint64_t> end = AppendTo(Path(name), offset, data, options_.bytes_max);
    loop_.Post([this, name, end, done] {
      if (end.ok()) {
        uint64_t& known = ends_[name];
        known = std::max(known, *end);
      }
      done(end);
    });
  });
}

void JobLogs::Read(const std::string& name, uint64_t offset, uint64_t size_max, Done<Chunk> done) {
  disk_.Post([this, name, offset, size_max, done = std::move(done)] {
    auto chunk = std::make_shared<absl::StatusOr<Chunk>>(ReadFrom(Path(name), offset, size_max));
    loop_.Post([chunk, done] { done(std::move(*chunk)); });
  });
}

void JobLogs::Tail(const std::string& name, int lines, uint64_t bytes_max, std::function<void(std::string)> done) {
  uint64_t end = End(name);
  Read(name, end > bytes_max ? end - bytes_max : 0, bytes_max, [lines, done = std::move(done)](absl::StatusOr<Chunk> chunk) {
    if (!chunk.ok()) return done("");
    std::string text = std::move(chunk->data);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    size_t at = text.size();
    for (int line = 0; line < lines && at != std::string::npos && at > 0; ++line) at = text.rfind('\n', at - 1);
    if (at != std::string::npos && at > 0 && at < text.size()) text.erase(0, at + 1);
    done(std::move(text));
  });
}

void JobLogs::Erase(const std::string& name) {
  ends_.erase(name);
  disk_.Post([path = Path(name)] { ::unlink(path.c_str()); });
}

uint64_t JobLogs::End(const std::string& name) const {
  auto at = ends_.find(name);
  return at == ends_.end() ? 0 : at->second;
}

}  // namespace argosy::head
