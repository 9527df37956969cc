#include "runtime/node/package_plan.h"

#include <fnmatch.h>
#include <zip.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "runtime/base/id.h"
#include "runtime/base/status.h"
#include "runtime/wire/sha256.h"

namespace argosy::node {
namespace fs = std::filesystem;
namespace {

constexpr const char* kNeverPacked[] = {".git", ".venv", "venv", "node_modules", "__pycache__"};
constexpr size_t kEntriesMax = 200'000;

struct IgnoreFile {
  std::string folder;   // relative to the package's root, "" or "sub/"
  std::vector<std::string> lines;
};

std::vector<std::string> ReadLines(const fs::path& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line.front() != '#') lines.push_back(line);
  }
  return lines;
}

bool Matches(std::string pattern, const std::string& name, bool is_directory) {
  if (!pattern.empty() && pattern.back() == '/') {
    if (!is_directory) return false;
    pattern.pop_back();
  }
  if (pattern.find('/') == std::string::npos) {
    std::string base = name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
    return fnmatch(pattern.c_str(), base.c_str(), 0) == 0;
  }
  if (pattern.front() == '/') pattern.erase(0, 1);
  if (pattern.rfind("**/", 0) == 0) {
    // At any depth: the rest may match at every folder boundary.
    std::string rest = pattern.substr(3);
    for (size_t at = 0; at != std::string::npos; at = name.find('/', at) == std::string::npos ? std::string::npos : name.find('/', at) + 1) {
      if (fnmatch(rest.c_str(), name.c_str() + at, FNM_PATHNAME) == 0) return true;
    }
    return false;
  }
  if (pattern.size() > 3 && pattern.compare(pattern.size() - 3, 3, "/**") == 0) {
    return name.rfind(pattern.substr(0, pattern.size() - 2), 0) == 0;
  }
  bool any_depth = pattern.find("/**/") != std::string::npos;
  return fnmatch(pattern.c_str(), name.c_str(), any_depth ? 0 : FNM_PATHNAME) == 0;
}

bool IsInside(const fs::path& root, const fs::path& path) {
  auto [end, ignored] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return end == root.end();
}

class Planner {
 public:
  explicit Planner(fs::path root) : root_(std::move(root)) {}

  absl::Status Walk(const fs::path& folder, const std::string& prefix) {
    size_t ignores = ignores_.size();
    std::error_code error;
    if (fs::is_regular_file(folder / ".gitignore", error)) ignores_.push_back({prefix, ReadLines(folder / ".gitignore")});
    std::vector<fs::directory_entry> children;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) children.push_back(*it);
    if (error) return Internal("cannot read {}: {}", folder.string(), error.message());
    for (const fs::directory_entry& child : children) {
      std::string base = child.path().filename().string();
      if (std::find(std::begin(kNeverPacked), std::end(kNeverPacked), base) != std::end(kNeverPacked)) continue;
      ARGOSY_RETURN_IF_ERROR(Visit(child, prefix + base));
    }
    ignores_.resize(ignores);
    return absl::OkStatus();
  }

  PackagePlan plan;

 private:
  absl::Status Visit(const fs::directory_entry& child, const std::string& name) {
    std::error_code error;
    bool link = child.is_symlink(error);
    bool directory = child.is_directory(error);   // follows links
    bool ignored = false;
    for (const IgnoreFile& file : ignores_) ignored = IsIgnored(file.lines, name.substr(file.folder.size()), directory, ignored);
    if (ignored) return absl::OkStatus();
    if (link) {
      fs::path target = fs::canonical(child.path(), error);
      if (error) {
        plan.left_out.push_back(fmt::format("{}: a link to nothing", name));
        return absl::OkStatus();
      }
      if (!IsInside(root_, target) || directory) {
        plan.left_out.push_back(fmt::format("{}: a link to {}, {}", name, target.string(), directory ? "a folder" : "outside the working directory"));
        return absl::OkStatus();
      }
    }
    if (directory) return Walk(child.path(), name + "/");
    if (!child.is_regular_file(error)) {
      plan.left_out.push_back(fmt::format("{}: neither a file nor a folder", name));
      return absl::OkStatus();
    }
    PackageEntry entry{.name = name, .path = child.path().string()};
    entry.size = child.file_size(error);
    if (error) return Internal("cannot read {}: {}", entry.path, error.message());
    bool executable = (fs::status(child.path(), error).permissions() & fs::perms::owner_exec) != fs::perms::none;
    entry.mode = executable ? 0755 : 0644;
    plan.size += entry.size;
    plan.entries.push_back(std::move(entry));
    if (plan.entries.size() > kEntriesMax) return InvalidArgument("{} holds more than {} files; name what to leave out in a .gitignore", root_.string(), kEntriesMax);
    return absl::OkStatus();
  }

  fs::path root_;
  std::vector<IgnoreFile> ignores_;
};

// sha256 over each entry's name, mode, size and content, in the order of the names.
absl::StatusOr<std::string> HashEntries(const std::vector<PackageEntry>& entries) {
  wire::Sha256 digest;
  std::string piece(256 << 10, '\0');
  for (const PackageEntry& entry : entries) {
    digest.Update(fmt::format("{}\n{:o}\n{}\n", entry.name, entry.mode, entry.size));
    std::ifstream file(entry.path, std::ios::binary);
    if (!file) return ErrnoStatus(errno, entry.path);
    while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())), file.gcount() > 0) {
      digest.Update(std::string_view(piece.data(), static_cast<size_t>(file.gcount())));
    }
  }
  std::string hash = digest.Finish();
  return internal::ToHex(reinterpret_cast<const unsigned char*>(hash.data()), 8);
}

}  // namespace

bool IsIgnored(const std::vector<std::string>& lines, const std::string& name, bool is_directory, bool before) {
  bool ignored = before;
  for (const std::string& line : lines) {
    bool takes_back = line.front() == '!';
    if (Matches(takes_back ? line.substr(1) : line, name, is_directory)) ignored = !takes_back;
  }
  return ignored;
}

absl::StatusOr<PackagePlan> PlanPackage(const std::string& directory) {
  std::error_code error;
  fs::path root = fs::canonical(directory, error);
  if (error) return NotFound("working directory {}: {}", directory, error.message());
  if (!fs::is_directory(root, error)) return InvalidArgument("working directory {} is not a folder", directory);
  Planner planner(root);
  ARGOSY_RETURN_IF_ERROR(planner.Walk(root, ""));
  PackagePlan plan = std::move(planner.plan);
  if (plan.entries.empty()) return InvalidArgument("working directory {} holds no file to send", directory);
  std::sort(plan.entries.begin(), plan.entries.end(), [](const PackageEntry& a, const PackageEntry& b) { return a.name < b.name; });
  ARGOSY_ASSIGN_OR_RETURN(std::string hash, HashEntries(plan.entries));
  plan.name = "_ray_pkg_" + hash + ".zip";
  return plan;
}

absl::Status WritePackage(const PackagePlan& plan, const std::string& zip_path) {
  int code = 0;
  zip_t* archive = zip_open(zip_path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  if (archive == nullptr) return Internal("cannot write {} (libzip error {})", zip_path, code);
  auto fail = [&](const std::string& name) {
    absl::Status status = Internal("packing {}: {}", name, zip_strerror(archive));
    zip_discard(archive);
    return status;
  };
  for (const PackageEntry& entry : plan.entries) {
    zip_source_t* source = zip_source_file(archive, entry.path.c_str(), 0, static_cast<zip_int64_t>(entry.size));
    if (source == nullptr) return fail(entry.name);
    zip_int64_t index = zip_file_add(archive, entry.name.c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(source);
      return fail(entry.name);
    }
    auto at = static_cast<zip_uint64_t>(index);
    // Light compression: the network is seldom slower than a harder one.
    if (zip_set_file_compression(archive, at, ZIP_CM_DEFLATE, 1) != 0) return fail(entry.name);
    constexpr unsigned kRegularFile = 0100000;
    zip_file_set_external_attributes(archive, at, 0, ZIP_OPSYS_UNIX, (kRegularFile | entry.mode) << 16);
    zip_file_set_mtime(archive, at, 946'728'000, 0);   // one fixed time
  }
  if (zip_close(archive) != 0) return fail(zip_path);
  return absl::OkStatus();
}

}  // namespace argosy::node
