#pragma once

// Reading of HF weights: the safetensors format and the directories that hold it in one or several files.
// Format: https://huggingface.co/docs/safetensors (u64 little-endian header length, JSON header, data).

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"
#include "train/config/dtype.h"
#include "train/config/model_config.h"

namespace argosy::train {

// One tensor of one file.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t offset = 0;  // of the first byte, from the start of the file
  int64_t bytes = 0;
};

// An open file and its parsed header.
//
// Thread:   any; nothing changes after Open, and reads are preads.
// Failure:  Open refuses a file that is cut, or whose header is damaged, has tensors that overlap, leave holes, pass the file's end,
//           or disagree with their shapes; messages name the file and the tensor.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& Path() const { return path_; }
  // In the order of their bytes.
  const std::vector<StoredTensor>& Tensors() const { return tensors_; }
  const std::map<std::string, std::string>& Metadata() const { return metadata_; }
  int64_t FileBytes() const { return file_bytes_; }
  // Null when there is no such tensor.
  const StoredTensor* Find(std::string_view name) const;

  // Fills `out` with the bytes from `byte_begin` (of the tensor) on.
  absl::Status ReadBytes(const StoredTensor& tensor, int64_t byte_begin, std::span<std::byte> out) const;

 private:
  std::string path_;
  UniqueFd fd_;
  int64_t file_bytes_ = 0;
  std::vector<StoredTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> index_by_name_;
  std::map<std::string, std::string> metadata_;
};

// The weights of an HF directory: model.safetensors, or the shards that model.safetensors.index.json lists.
//
// Thread:   any; nothing changes after Open. Each call reads through its own bounded buffer (1 MiB), whatever the range's size.
// Failure:  a missing shard, a tensor that the index places in a file without it, and a tensor in two files are named by Open;
//           a tensor in no file by Find, Check and Read.
class HfWeights {
 public:
  // `stem`: of the files' names; "model" for weights.
  static absl::StatusOr<HfWeights> Open(const std::string& directory, std::string_view stem = "model");

  struct Location {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  const std::string& Directory() const { return directory_; }
  const std::vector<SafetensorsFile>& Files() const { return files_; }
  bool Has(std::string_view name) const;
  absl::StatusOr<Location> Find(std::string_view name) const;
  // Shape and presence of every wanted tensor, and that its type can be read as floats; the types may differ from the specs'. The error names all
  // that are not as they are to be.
  absl::Status Check(std::span<const TensorSpec> wanted) const;
  // The same of a model's, and that there are no others: they would be of another model. (Old files' rotary frequencies, and a tied head that is the
  // embedding again, say nothing new.)
  absl::Status CheckModel(const ModelConfig& config) const;
  // The stored type of most elements: what the model was saved in.
  DType MainDType() const;

  // Elements [element_begin, element_begin + out.size()) of the flattened tensor, from F32, BF16 or F16. Exact.
  absl::Status ReadRange(std::string_view name, int64_t element_begin, std::span<float> out) const;
  // As bf16 bits, F32 and F16 rounded to nearest even.
  absl::Status ReadRangeBf16(std::string_view name, int64_t element_begin, std::span<uint16_t> out) const;

 private:
  // What is wrong, tensor by tensor.
  std::vector<std::string> Problems(std::span<const TensorSpec> wanted) const;
  absl::StatusOr<bool> SameValues(std::string_view a, std::string_view b) const;

  std::string directory_;
  std::vector<SafetensorsFile> files_;
  absl::flat_hash_map<std::string, std::pair<size_t, size_t>> locations_;  // name -> file, tensor
};

}  // namespace argosy::train
