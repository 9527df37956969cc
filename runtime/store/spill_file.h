#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"
#include "runtime/store/extent_map.h"

namespace argosy::store {

// Where objects are written for which memory has no room. Who uses it decides what lies where.
//
// Thread:   one at a time; all of it blocks.
// Failure:  Write: RESOURCE_EXHAUSTED when the disk is full, else the disk's error. What was written before is not touched by that.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> bytes) = 0;
  // The range is not needed any more.
  virtual void Free(Range range) = 0;
  // Nothing is.
  virtual void FreeAll() = 0;
};

// One file without a name: it is gone with this process, however that ends. Ranges that are freed are given back to the file system
// where it can do that; the whole is given back when nothing is in it.
class SpillFile final : public Disk {
 public:
  // In `folder`, which is made when it is missing.
  static absl::StatusOr<std::unique_ptr<SpillFile>> Open(const std::string& folder);

  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) override;
  absl::Status Read(uint64_t offset, std::span<std::byte> bytes) override;
  void Free(Range range) override;
  void FreeAll() override;

 private:
  SpillFile(UniqueFd fd, std::string folder) : fd_(std::move(fd)), folder_(std::move(folder)) {}

  UniqueFd fd_;
  std::string folder_;
};

}  // namespace argosy::store
