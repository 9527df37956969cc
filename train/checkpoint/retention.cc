#include "train/checkpoint/retention.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "runtime/base/status.h"

namespace argosy::train {
namespace {

namespace fs = std::filesystem;

bool IsRemoving(const std::string& name) { return name.starts_with(".") && name.ends_with(".removing"); }

// The listed files, then the manifest (so that an interrupted removal can be taken up again), then the directory if that emptied it.
absl::Status RemoveListedFiles(const std::string& directory, const CheckpointManifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    const std::string path = (fs::path(directory) / name).string();
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, fmt::format("cannot remove {}", path));
  }
  const std::string path = (fs::path(directory) / kManifestName).string();
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, fmt::format("cannot remove {}", path));
  if (::rmdir(directory.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST) {
    return ErrnoStatus(errno, fmt::format("cannot remove {}", directory));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<fs::path>> Directories(const std::string& parent) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) paths.push_back(it->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) return FailedPrecondition("cannot list {}: {}", parent, error.message());
  return paths;
}

}  // namespace

absl::StatusOr<SavedCheckpoint> ReadCheckpointNotes(const std::string& directory) {
  ARGOSY_ASSIGN_OR_RETURN(CheckpointManifest manifest, CheckpointManifest::Load(directory));
  return SavedCheckpoint{directory, std::move(manifest.notes)};
}

absl::StatusOr<std::vector<SavedCheckpoint>> ListCheckpoints(const std::string& parent) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<fs::path> paths, Directories(parent));
  std::vector<SavedCheckpoint> checkpoints;
  for (const fs::path& path : paths) {
    if (path.filename().string().starts_with(".")) continue;  // being written or removed
    absl::StatusOr<SavedCheckpoint> checkpoint = ReadCheckpointNotes(path.string());
    if (checkpoint.ok()) checkpoints.push_back(*std::move(checkpoint));
  }
  std::sort(checkpoints.begin(), checkpoints.end(), [](const SavedCheckpoint& a, const SavedCheckpoint& b) {
    return std::tie(a.notes.step, a.directory) < std::tie(b.notes.step, b.directory);
  });
  return checkpoints;
}

std::vector<SavedCheckpoint> ChooseRemovals(const std::vector<SavedCheckpoint>& checkpoints, const RetentionPolicy& policy) {
  if (!policy.num_to_keep || checkpoints.empty()) return {};
  std::vector<SavedCheckpoint> ranked = checkpoints;  // best first
  std::sort(ranked.begin(), ranked.end(), [](const SavedCheckpoint& a, const SavedCheckpoint& b) {
    return std::tie(a.notes.step, a.directory) > std::tie(b.notes.step, b.directory);
  });
  const std::string newest = ranked.front().directory;
  if (!policy.metric.empty()) {
    auto score = [&](const SavedCheckpoint& checkpoint) {
      auto it = checkpoint.notes.metrics.find(policy.metric);
      if (it == checkpoint.notes.metrics.end() || std::isnan(it->second)) return -HUGE_VAL;
      return policy.higher_is_better ? it->second : -it->second;
    };
    std::stable_sort(ranked.begin(), ranked.end(),
                     [&](const SavedCheckpoint& a, const SavedCheckpoint& b) { return score(a) > score(b); });
  }
  std::vector<SavedCheckpoint> removals;
  for (size_t i = static_cast<size_t>(std::max<int64_t>(0, *policy.num_to_keep)); i < ranked.size(); ++i) {
    if (ranked[i].directory != newest) removals.push_back(ranked[i]);
  }
  return removals;
}

absl::Status RemoveCheckpoint(const std::string& directory) {
  ARGOSY_ASSIGN_OR_RETURN(CheckpointManifest manifest, CheckpointManifest::Load(directory));
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name != kManifestName && !manifest.files.contains(name)) return RemoveListedFiles(path.string(), manifest);
  }
  std::string hidden = (path.parent_path() / fmt::format(".{}.removing", path.filename().string())).string();
  if (::rename(path.c_str(), hidden.c_str()) != 0) return ErrnoStatus(errno, fmt::format("cannot rename {}", path.string()));
  return RemoveListedFiles(hidden, manifest);
}

absl::Status ApplyRetention(const std::string& parent, const RetentionPolicy& policy) {
  ARGOSY_ASSIGN_OR_RETURN(std::vector<fs::path> paths, Directories(parent));
  for (const fs::path& path : paths) {  // what an interrupted removal left
    if (!IsRemoving(path.filename().string())) continue;
    absl::StatusOr<CheckpointManifest> manifest = CheckpointManifest::Load(path.string());
    if (manifest.ok()) ARGOSY_RETURN_IF_ERROR(RemoveListedFiles(path.string(), *manifest));
    else ::rmdir(path.c_str());
  }
  ARGOSY_ASSIGN_OR_RETURN(std::vector<SavedCheckpoint> checkpoints, ListCheckpoints(parent));
  for (const SavedCheckpoint& checkpoint : ChooseRemovals(checkpoints, policy)) {
    ARGOSY_RETURN_IF_ERROR(RemoveCheckpoint(checkpoint.directory));
  }
  return absl::OkStatus();
}

}  // namespace argosy::train
