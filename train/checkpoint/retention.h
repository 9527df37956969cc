#pragma once

// Which checkpoints of a run are kept.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/checkpoint/manifest.h"

namespace argosy::train {

struct SavedCheckpoint {
  std::string directory;
  CheckpointNotes notes;
};

struct RetentionPolicy {
  std::optional<int64_t> num_to_keep;  // none = all
  // Keep the best by this metric; empty = keep the newest. The newest is kept in any case: a run goes on from it.
  std::string metric;
  bool higher_is_better = false;
};

// The finished checkpoints directly under `parent`, oldest first (by step, then name). Other directories are left out.
absl::StatusOr<std::vector<SavedCheckpoint>> ListCheckpoints(const std::string& parent);

// Reads the notes of one; NotFound when `directory` is no finished checkpoint of ours.
absl::StatusOr<SavedCheckpoint> ReadCheckpointNotes(const std::string& directory);

// The ones to delete. A checkpoint without the metric, or with NaN, ranks last.
std::vector<SavedCheckpoint> ChooseRemovals(const std::vector<SavedCheckpoint>& checkpoints, const RetentionPolicy& policy);

// Makes it invisible at once, then deletes the files that its notes list. Files of others in the directory are kept, with it.
absl::Status RemoveCheckpoint(const std::string& directory);

// List, choose, remove.
absl::Status ApplyRetention(const std::string& parent, const RetentionPolicy& policy);

}  // namespace argosy::train
