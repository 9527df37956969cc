#include <elf.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "runtime/api/process.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/wire/sha256.h"

namespace argosy::internal {
namespace {

// Where distributions put what every node has by its own package manager.
bool IsSystemPath(const std::string& path) {
  for (const char* prefix : {"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/lib32/", "/usr/lib32/"}) {
    if (path.starts_with(prefix)) return true;
  }
  return false;
}

bool IsVendorFolder(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / "libtorch_cpu.so", error) || std::filesystem::exists(folder / "libtorch.so", error);
}

std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] == '/') static_cast<std::vector<std::string>*>(out)->push_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

// A file's hash by (device, inode, size, change time): reading 100 MB again at every start would be felt.
class HashCache {
 public:
  HashCache() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (cache != nullptr && cache[0] == '/') path_ = std::string(cache) + "/argosy/code_hashes";
    else if (home != nullptr && home[0] == '/') path_ = std::string(home) + "/.cache/argosy/code_hashes";
    if (path_.empty()) return;
    if (absl::StatusOr<std::string> text = ReadFile(path_); text.ok()) {
      if (auto hashes = Decode<std::map<std::string, std::string>>(*text); hashes.ok()) hashes_ = std::move(*hashes);
    }
  }
  ~HashCache() {
    constexpr size_t kEntriesMax = 4096;
    if (!changed_ || path_.empty()) return;
    if (hashes_.size() > kEntriesMax) hashes_.clear();
    std::string folder = path_.substr(0, path_.rfind('/'));
    absl::Status status = MakeDirectories(folder, 0700);
    if (status.ok()) status = WriteFileAtomic(path_, Encode(hashes_), {.mode = 0600});
    if (!status.ok()) spdlog::debug("code hashes are not kept: {}", Message(status));
  }

  std::string Hash(const std::string& path, const struct stat& info) {
    std::string key = fmt::format("{}:{}:{}:{}.{}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    auto it = hashes_.find(key);
    if (it != hashes_.end()) return it->second;
    absl::StatusOr<std::string> hash = wire::Sha256FileHex(path);
    if (!hash.ok()) throw RuntimeError(fmt::format("{} cannot be read, so no node can run it: {}", path, Message(hash.status())));
    changed_ = true;
    return hashes_[key] = *hash;
  }

 private:
  std::string path_;
  std::map<std::string, std::string> hashes_;
  bool changed_ = false;
};

}  // namespace

wire::CodePackage MakeCodePackage(int argc, char** argv, const std::map<std::string, std::string>& env_vars) {
  wire::CodePackage package;
  HashCache cache;
  auto add = [&](const std::string& path) {
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0) return;
    wire::CodeFile file;
    file.path = path;
    file.size = static_cast<uint64_t>(info.st_size);
    file.mode = info.st_mode & 07777;
    file.sha256 = cache.Hash(path, info);
    package.files.push_back(std::move(file));
  };
  char executable[PATH_MAX];
  ssize_t n = ::readlink("/proc/self/exe", executable, sizeof executable);
  if (n <= 0) throw RuntimeError("/proc/self/exe cannot be read, so no node can run this program");
  add(std::string(executable, static_cast<size_t>(n)));
  std::set<std::string> vendor_folders;
  for (const std::string& library : LoadedLibraries()) {
    if (IsSystemPath(library)) continue;
    std::error_code error;
    std::filesystem::path real = std::filesystem::canonical(library, error);
    if (error || IsSystemPath(real.string())) continue;
    std::filesystem::path folder = real.parent_path();
    if (vendor_folders.contains(folder.string()) || IsVendorFolder(folder)) {
      vendor_folders.insert(folder.string());
      continue;
    }
    // By the name under which the loader looks for it.
    add(library);
  }
  package.library_path.assign(vendor_folders.begin(), vendor_folders.end());
  for (int i = 0; i < argc; ++i) package.argv.emplace_back(argv[i]);
  package.env_vars = env_vars;
  std::error_code error;
  package.working_dir = std::filesystem::current_path(error).string();
  wire::Sha256 id;
  for (const wire::CodeFile& file : package.files) id.Update(file.sha256);
  id.Update(Encode(package.argv));
  id.Update(Encode(package.env_vars));
  id.Update(package.working_dir);
  for (unsigned char byte : id.Finish()) package.id += fmt::format("{:02x}", byte);
  return package;
}

}  // namespace argosy::internal
