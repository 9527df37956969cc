#include "runtime/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"

namespace argosy {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return ErrnoStatus(errno, path);
  std::string content;
  struct stat info;
  if (::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode)) content.reserve(static_cast<size_t>(info.st_size));
  char buffer[1 << 16];
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status WriteFileAtomic(const std::string& path, std::string_view content, WriteFileOptions options) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  unsigned char random[6];
  internal::FillRandom(random, sizeof random);
  std::string temporary = path + ".tmp-" + internal::ToHex(random, sizeof random);
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, options.mode));
  if (!fd.ok()) return ErrnoStatus(errno, path);
  auto fail = [&](const char* what) {
    absl::Status status = ErrnoStatus(errno, fmt::format("{} {}", what, path));
    ::unlink(temporary.c_str());
    return status;
  };
  for (size_t done = 0; done < content.size();) {
    ssize_t n = ::write(fd.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail("write");
    done += static_cast<size_t>(n);
  }
  if (options.sync && ::fsync(fd.get()) != 0) return fail("fsync");
  if (::rename(temporary.c_str(), path.c_str()) != 0) return fail("rename to");
  if (options.sync) {
    UniqueFd parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent.ok() || ::fsync(parent.get()) != 0) return ErrnoStatus(errno, "fsync " + folder);
  }
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path, unsigned mode) {
  std::string prefix;
  for (const auto& part : std::filesystem::path(path)) {
    prefix = prefix.empty() ? part.string() : (std::filesystem::path(prefix) / part).string();
    if (::mkdir(prefix.c_str(), mode) != 0 && errno != EEXIST) return ErrnoStatus(errno, "mkdir " + prefix);
  }
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) return InvalidArgument("{} is not a folder", path);
  return absl::OkStatus();
}

}  // namespace argosy
