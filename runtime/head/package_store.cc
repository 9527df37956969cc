#include "runtime/head/package_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/base/id.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"

namespace argosy::head {

absl::Status PackageStore::Open() {
  ARGOSY_RETURN_IF_ERROR(MakeDirectories(folder_, 0700));
  // What a killed head left half written.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    if (entry.path().filename().string().starts_with(".upload-")) std::filesystem::remove(entry.path(), error);
  }
  return absl::OkStatus();
}

absl::Status PackageStore::CheckName(const std::string& name) {
  bool ok = !name.empty() && name.size() <= 200 && name.front() != '.';
  for (char c : name) ok = ok && (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' || c == '+');
  if (ok) return absl::OkStatus();
  return InvalidArgument("package name \"{}\": use up to 200 letters, digits and . _ - +, not beginning with a dot", name.substr(0, 200));
}

absl::StatusOr<std::unique_ptr<PackageStore::Writer>> PackageStore::StartWrite(const std::string& name) const {
  ARGOSY_RETURN_IF_ERROR(CheckName(name));
  auto writer = std::make_unique<Writer>();
  writer->folder_ = folder_;
  writer->path_ = Path(name);
  writer->temporary_ = folder_ + "/.upload-" + ObjectId::Random().Hex();
  writer->fd_.Reset(::open(writer->temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!writer->fd_.ok()) return ErrnoStatus(errno, writer->temporary_);
  return writer;
}

PackageStore::Writer::~Writer() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status PackageStore::Writer::Write(const std::string& bytes) {
  if (size_ + bytes.size() > kPackageBytesMax) {
    return absl::ResourceExhaustedError(
        ToAbsl(fmt::format("the package is larger than {} MiB: leave data out of it (excludes), or put it on shared storage", kPackageBytesMax >> 20)));
  }
  for (size_t at = 0; at < bytes.size();) {
    ssize_t n = ::write(fd_.get(), bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, temporary_);
    at += static_cast<size_t>(n);
  }
  size_ += bytes.size();
  return absl::OkStatus();
}

absl::Status PackageStore::Writer::Commit() {
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, path_);
  temporary_.clear();
  UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.ok() || ::fsync(folder.get()) != 0) return ErrnoStatus(errno, folder_);
  return absl::OkStatus();
}

}  // namespace argosy::head
