#pragma once

// The optimizer's state in a file, where memory is too small for it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"

namespace argosy::train {

// A file without a name, mapped whole and handed out in parts. A part is used at its address like memory; the system reads it when it is touched, and it is
// resident from Expect to Leave. Bytes never written are 0.
//
// Thread:   one at a time; parts may be used by several.
// Lifetime: parts end with it, and so does the file, whatever happens to the process.
// Failure:  Create names the folder, the bytes and what was wrong; the space is taken then. Leave reports writes that failed. A read that the disk
//           cannot serve ends the process (SIGBUS), as a lost rank.
class StateFile {
 public:
  static absl::StatusOr<std::unique_ptr<StateFile>> Create(const std::string& directory, int64_t bytes);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // What the next part of `bytes` adds to Create's.
  static int64_t Rounded(int64_t bytes);
  std::span<std::byte> Take(int64_t bytes);
  // The part is about to be used: the disk may begin to read it.
  void Expect(std::span<const std::byte> part) const;
  // It was used: the disk begins to write it, and what was left before this is waited for and leaves memory.
  absl::Status Leave(std::span<const std::byte> part);

 private:
  StateFile(UniqueFd fd, std::span<std::byte> map, std::string directory) : fd_(std::move(fd)), map_(map), directory_(std::move(directory)) {}

  UniqueFd fd_;
  std::span<std::byte> map_;
  std::string directory_;
  int64_t taken_ = 0;
  std::span<const std::byte> leaving_;
};

}  // namespace argosy::train
