#pragma once

// Which bytes go where in the files of an HF checkpoint: known before any weight is, from names, shapes and types alone.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "train/config/model_config.h"

namespace argosy::train {

inline constexpr int64_t kShardBytesDefault = 5'000'000'000;

// A run of bytes of one file.
struct FileExtent {
  size_t file = 0;    // index into CheckpointLayout::files
  int64_t begin = 0;  // from the start of the file
  int64_t end = 0;
};

struct PlacedTensor {
  TensorSpec spec;
  FileExtent extent;
};

struct PlannedFile {
  std::string name;    // "model.safetensors", "model-00001-of-00003.safetensors"
  std::string header;  // everything before the data: length, JSON, padding
  int64_t bytes = 0;   // of the whole file
  std::vector<PlacedTensor> tensors;  // in the order of their bytes, which follow the header without gaps
};

struct CheckpointLayout {
  std::vector<PlannedFile> files;
  int64_t tensor_bytes = 0;   // of all tensors
  int64_t parameters = 0;
  std::string index_json;     // model.safetensors.index.json; empty when there is one file

  // Null when the checkpoint does not hold it.
  const PlacedTensor* Find(std::string_view name) const;
  // Of elements [begin, begin + count) of a tensor that is in the layout.
  FileExtent ExtentOf(const PlacedTensor& tensor, int64_t element_begin, int64_t element_count) const;
  int64_t FileBytes() const;  // of all weight files

  absl::flat_hash_map<std::string, std::pair<size_t, size_t>> by_name;
};

struct LayoutOptions {
  int64_t shard_bytes_max = kShardBytesDefault;  // of tensors; a larger tensor gets a file of its own
  std::string stem = "model";                    // "adapter_model" for an adapter
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

// Shards are cut in the order given, as huggingface_hub's splitter cuts them; inside a file tensors are in the format's order:
// alignment of the type descending, then name. A name given twice is an error.
absl::StatusOr<CheckpointLayout> PlanCheckpoint(std::span<const TensorSpec> tensors, const LayoutOptions& options = {});

}  // namespace argosy::train
