#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/unique_fd.h"
#include "runtime/store/extent_map.h"

namespace argosy::store {

// The memory of one node's object store: a memfd of fixed size, sparse until ranges of it are reserved.
//
// Thread:   any; Reserve and Punch block.
// Lifetime: spans point into it.
// Failure:  Make and Reserve: RESOURCE_EXHAUSTED and the like, from the kernel.
class Arena {
 public:
  static absl::StatusOr<std::unique_ptr<Arena>> Make(uint64_t size);
  ~Arena();

  uint64_t size() const { return size_; }
  int writable_fd() const { return writable_.get(); }
  int readable_fd() const { return readable_.get(); }   // opened read-only
  std::span<std::byte> Bytes(uint64_t offset, uint64_t size) const;

  // Gets the memory: from then on touching the range cannot fail.
  absl::Status Reserve(Range range);
  // Gives the memory back; the range reads as zeros.
  absl::Status Punch(Range range);
  // Memory that the kernel holds for it now.
  uint64_t ResidentBytes() const;

 private:
  Arena(UniqueFd writable, UniqueFd readable, std::byte* bytes, uint64_t size)
      : writable_(std::move(writable)), readable_(std::move(readable)), bytes_(bytes), size_(size) {}

  UniqueFd writable_;
  UniqueFd readable_;
  std::byte* bytes_;
  uint64_t size_;
};

}  // namespace argosy::store
