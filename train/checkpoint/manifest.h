#pragma once

// argosy_checkpoint.json: what marks a directory as a finished checkpoint of ours, and says what is in it.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace argosy::train {

inline constexpr char kManifestName[] = "argosy_checkpoint.json";

// What the run says about a checkpoint.
struct CheckpointNotes {
  int64_t step = 0;
  int64_t epoch = 0;
  std::map<std::string, double> metrics;  // "perplexity", "eval_loss", ...
};

struct CheckpointManifest {
  struct File {
    int64_t bytes = 0;
    uint32_t crc32c = 0;
  };

  CheckpointNotes notes;
  std::map<std::string, File> files;         // all but the manifest itself
  std::map<std::string, uint32_t> tensors;   // CRC-32C of each tensor's bytes

  std::string ToJson() const;
  static absl::StatusOr<CheckpointManifest> Parse(std::string_view json);
  // NotFound when the directory has none.
  static absl::StatusOr<CheckpointManifest> Load(const std::string& directory);
};

}  // namespace argosy::train
