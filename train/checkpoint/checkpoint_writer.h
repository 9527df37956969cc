#pragma once

// Writes an HF checkpoint directory so that a reader sees all of it or none.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"
#include "train/checkpoint/checkpoint_layout.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/object_sink.h"
#include "train/config/model_config.h"

namespace argosy::train {

struct CheckpointWriterOptions {
  // The finished directory. One that exists is replaced only when it is empty or a checkpoint with nothing else in it.
  std::string directory;
  CheckpointLayout layout;
  // Kept beside the weights in argosy_checkpoint.json, with the list of files and the checksum of each tensor.
  CheckpointNotes notes;
  bool verify = true;  // read everything back from storage before it counts
  // Where the bytes go instead, as objects: `directory` is then their address, for messages, and what verifying means is the sink's.
  std::unique_ptr<ObjectSink> sink = nullptr;
};

// Bytes of one tensor that a PieceWriter wrote.
struct WrittenPiece {
  int64_t file = 0;      // of the layout
  int64_t tensor = 0;    // of the file
  int64_t begin = 0;     // in bytes of the tensor
  int64_t bytes = 0;
  uint32_t crc32c = 0;
};

// Writes parts of tensors into the files that another process' CheckpointWriter made.
//
// Thread:   one at a time.
// Failure:  says which file; what is written counts for nothing until that writer commits.
// Memory:   none beyond the caller's bytes; dirty pages are handed to storage every 64 MB.
class PieceWriter {
 public:
  // `layout` is the writer's, and outlives this.
  PieceWriter(std::string directory, const CheckpointLayout& layout) : directory_(std::move(directory)), layout_(layout) {}
  absl::Status Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes);
  // Syncs, and says what was written.
  absl::StatusOr<std::vector<WrittenPiece>> Finish();

 private:
  absl::Status FinishFile();

  const std::string directory_;
  const CheckpointLayout& layout_;
  std::vector<WrittenPiece> pieces_;
  UniqueFd fd_;
  size_t file_ = 0;
  int64_t unsettled_ = 0;   // bytes since the last that were handed to storage
};

// Builds the checkpoint in a hidden directory beside the final one. Commit makes it appear.
//
// Thread:   one at a time.
// Lifetime: destroyed before Commit, it removes what it wrote; a crash leaves the hidden directory, which the next Create for the same
//           directory removes. The previous checkpoint stays whole until Commit exchanges the two.
// Failure:  every call says what failed on which file; after an error only destruction is useful.
// Memory:   none beyond the caller's bytes; dirty pages are handed to storage every 64 MB.
class CheckpointWriter {
 public:
  // Refuses when the file system has too little space.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(CheckpointWriterOptions options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const CheckpointLayout& Layout() const { return options_.layout; }

  // The next bytes of the weights, in the order of layout.files and their tensors, in pieces of any size.
  absl::Status Append(std::span<const std::byte> bytes);
  // The same with the place said aloud, so that a piece out of order is an error instead of a damaged tensor.
  absl::Status Write(std::string_view tensor, int64_t byte_begin, std::span<const std::byte> bytes);
  // What Append expects next: tensor and byte in it. None when all bytes are there.
  struct Position {
    const PlacedTensor* tensor = nullptr;
    int64_t byte = 0;
  };
  std::optional<Position> Next() const;

  // Instead of Append: makes the files with their headers and room for all bytes, in the hidden directory whose path it returns, for PieceWriters of
  // other processes on storage that they share. AddPieces takes what they wrote: all bytes of all tensors, once.
  absl::StatusOr<std::string> MakeFiles();
  absl::Status AddPieces(std::vector<WrittenPiece> pieces);

  // A small file of the directory: config.json, tokenizer files, ...
  absl::Status AddFile(std::string_view name, std::string_view content);
  // Copies `source` under its own name when it exists; says whether it did.
  absl::StatusOr<bool> CopyFile(const std::string& source);

  // Checks that every byte was written, syncs, reads back and compares, then exchanges with what was there before.
  absl::Status Commit();

 private:
  explicit CheckpointWriter(CheckpointWriterOptions options) : options_(std::move(options)) {}
  absl::Status OpenFile();
  absl::Status FinishFile();
  // Goes past tensors and files that have all their bytes.
  absl::Status Advance();
  absl::Status WriteBytes(std::span<const std::byte> bytes);
  absl::Status LimitDirtyPages();
  absl::Status VerifyFile(size_t index) const;
  absl::Status SyncSmallFiles() const;
  absl::Status Publish();

  CheckpointWriterOptions options_;
  std::string partial_;  // the hidden directory
  UniqueFd lock_;        // on the hidden directory, against a second writer
  size_t file_ = 0;      // being written; all before it are synced
  size_t tensor_ = 0;
  int64_t byte_ = 0;     // of the tensor
  bool open_ = false;    // the file
  UniqueFd fd_;
  int64_t offset_ = 0;   // of the file
  int64_t started_ = 0;  // bytes whose write-back was asked for
  int64_t settled_ = 0;  // bytes that reached storage
  uint32_t file_crc_ = 0;
  uint32_t tensor_crc_ = 0;
  CheckpointManifest manifest_;
  bool committed_ = false;
};

// What a run changes in the directory that its model came from.
struct ModelFiles {
  const ModelConfig* config = nullptr;
  ConfigChanges changes;
  std::string source_directory;                 // tokenizer files and generation_config.json come from here; may be empty
  std::map<std::string, std::string> contents;  // files to write instead of copying: "tokenizer.json", ...
};

// Names of the tokenizer's files, those that are there of which go along with a model.
std::span<const char* const> TokenizerFileNames();

// Adds config.json, generation_config.json, tokenizer files and chat template.
absl::Status AddModelFiles(CheckpointWriter& writer, const ModelFiles& files);

// Error when fewer than `bytes` are free where `directory` is or will be. Called before the first step of a run.
absl::Status CheckSpace(const std::string& directory, int64_t bytes);

}  // namespace argosy::train
