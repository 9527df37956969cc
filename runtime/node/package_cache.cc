#include "runtime/node/package_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/id.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/node/package_plan.h"

namespace argosy::node {
namespace {

struct CloseZip {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
struct CloseEntry {
  void operator()(zip_file_t* entry) const { zip_fclose(entry); }
};

// Error for a path that could leave its folder.
absl::Status CheckName(const std::string& name) {
  if (name.empty() || name[0] == '/' || name.find('\\') != std::string::npos || name.find('\0') != std::string::npos) {
    return InvalidArgument("the package has an entry '{}': want a relative path", name);
  }
  for (const auto& part : std::filesystem::path(name)) {
    if (part == "..") return InvalidArgument("the package has an entry '{}' that leaves its folder", name);
  }
  return absl::OkStatus();
}

absl::Status UnzipEntry(zip_t* archive, uint64_t index, const std::string& path, mode_t mode, uint64_t& bytes_left) {
  std::unique_ptr<zip_file_t, CloseEntry> entry(zip_fopen_index(archive, index, 0));
  if (!entry) return InvalidArgument("entry {} of the package cannot be read: {}", index, zip_strerror(archive));
  // O_EXCL: nothing that an earlier entry made is followed or overwritten.
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file.ok()) return ErrnoStatus(errno, path);
  char buffer[1 << 16];
  for (;;) {
    zip_int64_t n = zip_fread(entry.get(), buffer, sizeof buffer);
    if (n < 0) return InvalidArgument("{} is damaged in the package: {}", path, zip_error_strerror(zip_file_get_error(entry.get())));
    if (n == 0) return absl::OkStatus();
    // Counted as it is unpacked: what the directory of a zip file says may be a lie.
    if (static_cast<uint64_t>(n) > bytes_left) return InvalidArgument("the package is too large unpacked");
    bytes_left -= static_cast<uint64_t>(n);
    for (zip_int64_t done = 0; done < n;) {
      ssize_t written = ::write(file.get(), buffer + done, static_cast<size_t>(n - done));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus(errno, path);
      done += written;
    }
  }
}

}  // namespace

absl::Status Unzip(const std::string& zip_path, const std::string& folder, const UnzipLimits& limits) {
  int error = 0;
  std::unique_ptr<zip_t, CloseZip> archive(zip_open(zip_path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &error));
  if (!archive) {
    zip_error_t described;
    zip_error_init_with_code(&described, error);
    std::string why = zip_error_strerror(&described);
    zip_error_fini(&described);
    return InvalidArgument("the package is not a zip file: {}", why);
  }
  zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  if (static_cast<uint64_t>(std::max<zip_int64_t>(count, 0)) > limits.files_max) {
    return InvalidArgument("the package has {} files; at most {} are accepted", count, limits.files_max);
  }
  uint64_t bytes_left = limits.bytes_max;
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* raw_name = zip_get_name(archive.get(), static_cast<zip_uint64_t>(i), ZIP_FL_ENC_GUESS);
    if (raw_name == nullptr) return InvalidArgument("entry {} of the package has no name", i);
    std::string name = raw_name;
    ARGOSY_RETURN_IF_ERROR(CheckName(name));
    zip_uint8_t system = 0;
    zip_uint32_t attributes = 0;
    mode_t mode = 0644;
    if (zip_file_get_external_attributes(archive.get(), static_cast<zip_uint64_t>(i), 0, &system, &attributes) == 0 &&
        system == ZIP_OPSYS_UNIX) {
      mode_t type = (attributes >> 16) & S_IFMT;
      if (type != 0 && type != S_IFREG && type != S_IFDIR) {
        return InvalidArgument("the package has an entry '{}' that is a link or special file", name);
      }
      if (mode_t bits = (attributes >> 16) & 0777; bits != 0) mode = bits | 0600;
    }
    std::string path = folder + "/" + name;
    if (name.back() == '/') {
      ARGOSY_RETURN_IF_ERROR(MakeDirectories(path));
      continue;
    }
    ARGOSY_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path).parent_path().string()));
    ARGOSY_RETURN_IF_ERROR(UnzipEntry(archive.get(), static_cast<uint64_t>(i), path, mode, bytes_left));
  }
  return absl::OkStatus();
}

struct PackageCache::Download {
  std::string name;
  std::string zip_path;
  std::string unpacking;   // folder
  std::string final_folder;
  UniqueFd file;
  uint64_t size = 0;
  absl::Status status;
};

PackageCache::PackageCache(async::Loop& loop, ClusterClient& cluster, std::string folder)
    : loop_(loop), cluster_(cluster), folder_(std::move(folder)), work_(loop) {}

PackageCache::~PackageCache() { alive_.reset(); }

void PackageCache::Get(const std::string& uri, Done done) {
  constexpr std::string_view kScheme = "gcs://";
  if (uri.rfind(kScheme, 0) != 0) return done(InvalidArgument("package '{}': want gcs://NAME, as an upload to the head gives it", uri));
  std::string name = uri.substr(kScheme.size());
  bool plain = !name.empty() && name.size() <= 200 && name[0] != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
  if (!plain) return done(InvalidArgument("package name '{}': want letters, digits, _ - and .", name));
  std::string final_folder = folder_ + "/" + name + ".d";
  std::vector<Done>& waiting = waiting_[name];
  waiting.push_back(std::move(done));
  if (waiting.size() > 1) return;
  // It appears by rename: when it is there it is whole.
  if (std::filesystem::is_directory(final_folder)) return Finish(name, final_folder);

  auto download = std::make_shared<Download>();
  download->name = name;
  download->final_folder = final_folder;
  download->zip_path = fmt::format("{}/{}.part", folder_, name);
  download->unpacking = fmt::format("{}/{}.unpacking", folder_, name);
  if (absl::Status status = MakeDirectories(folder_, 0700); !status.ok()) return Finish(name, status);
  download->file.Reset(::open(download->zip_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!download->file.ok()) return Finish(name, ErrnoStatus(errno, download->zip_path));
  std::weak_ptr<bool> weak = alive_;
  cluster_.GetPackage(
      name,
      [this, weak, download](std::string bytes) {
        if (weak.expired()) return;
        auto data = std::make_shared<std::string>(std::move(bytes));
        work_.Run(
            [download, data] {
              if (!download->status.ok()) return;
              download->size += data->size();
              if (download->size > kPackageBytesMax) {
                download->status = InvalidArgument("package {} has more than {} bytes", download->name, kPackageBytesMax);
                return;
              }
              for (size_t done = 0; done < data->size();) {
                ssize_t n = ::write(download->file.get(), data->data() + done, data->size() - done);
                if (n < 0 && errno == EINTR) continue;
                if (n < 0) {
                  download->status = ErrnoStatus(errno, download->zip_path);
                  return;
                }
                done += static_cast<size_t>(n);
              }
            },
            nullptr);
      },
      [this, weak, download](absl::Status status) {
        if (weak.expired()) return;
        work_.Run(
            [download, status] {
              download->file.Reset();
              if (download->status.ok()) download->status = status;
              std::error_code ignored;
              std::filesystem::remove_all(download->unpacking, ignored);
              if (download->status.ok()) download->status = MakeDirectories(download->unpacking, 0700);
              if (download->status.ok()) download->status = Unzip(download->zip_path, download->unpacking, {});
              if (download->status.ok() && ::rename(download->unpacking.c_str(), download->final_folder.c_str()) != 0) {
                download->status = ErrnoStatus(errno, download->final_folder);
              }
              if (!download->status.ok()) std::filesystem::remove_all(download->unpacking, ignored);
              ::unlink(download->zip_path.c_str());
            },
            [this, weak, download] {
              if (weak.expired()) return;
              if (download->status.ok()) Finish(download->name, download->final_folder);
              else Finish(download->name, Annotate(download->status, "the head at " + cluster_.address()));
            });
      });
}

struct PackageCache::Pack {
  std::string path;
  PackagePlan plan;
  std::string zip_path;
  absl::Status status;
  std::function<void(absl::StatusOr<wire::UploadFolderReply>)> done;

  void Answer() {
    if (!zip_path.empty()) ::unlink(zip_path.c_str());
    if (status.ok()) done(wire::UploadFolderReply{"gcs://" + plan.name});
    else done(status);
  }
};

void PackageCache::Upload(const std::string& path, std::function<void(absl::StatusOr<wire::UploadFolderReply>)> done) {
  auto pack = std::make_shared<Pack>();
  pack->path = path;
  pack->done = std::move(done);
  std::weak_ptr<bool> weak = alive_;
  work_.Run(
      [pack] {
        absl::StatusOr<PackagePlan> plan = PlanPackage(pack->path);
        if (plan.ok()) pack->plan = std::move(*plan);
        else pack->status = plan.status();
      },
      [this, weak, pack] {
        if (weak.expired()) return;
        if (!pack->status.ok()) return pack->Answer();
        for (const std::string& line : pack->plan.left_out) spdlog::info("left out of the package of {}: {}", pack->path, line);
        cluster_.HasPackage(pack->plan.name, [this, weak, pack](absl::StatusOr<bool> known) {
          if (weak.expired()) return;
          if (!known.ok()) pack->status = known.status();
          if (!known.ok() || *known) return pack->Answer();
          SendPacked(pack);
        });
      });
}

void PackageCache::SendPacked(std::shared_ptr<Pack> pack) {
  std::weak_ptr<bool> weak = alive_;
  work_.Run(
      [pack, folder = folder_] {
        pack->status = MakeDirectories(folder, 0700);
        pack->zip_path = fmt::format("{}/{}.{}.packing", folder, pack->plan.name, TaskId::Random().Hex());
        if (pack->status.ok()) pack->status = WritePackage(pack->plan, pack->zip_path);
        struct stat info{};
        if (!pack->status.ok() || ::stat(pack->zip_path.c_str(), &info) != 0 || static_cast<uint64_t>(info.st_size) <= kPackageBytesMax) return;
        pack->status = MakeStatus(absl::StatusCode::kResourceExhausted, "{} has {} bytes packed; at most {} can be sent: name what to leave out in a .gitignore",
                                  pack->path, info.st_size, kPackageBytesMax);
      },
      [this, weak, pack] {
        if (weak.expired()) return;
        if (!pack->status.ok()) return pack->Answer();
        cluster_.PutPackage(pack->plan.name, pack->zip_path, [weak, pack](absl::Status status) {
          if (weak.expired()) return;
          pack->status = std::move(status);
          pack->Answer();
        });
      });
}

void PackageCache::Finish(const std::string& name, absl::StatusOr<std::string> folder) {
  auto waiting = waiting_.extract(name);
  if (waiting.empty()) return;
  for (Done& done : waiting.mapped()) done(folder);
}

}  // namespace argosy::node
