#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace argosy::store {

// Which parts of an arena are taken. Best fit: the smallest free part that is large enough, the lowest of equals.
//
// Thread:   its owner's.
// Failure:  none when the arena is full; freeing what was not allocated is false.
class Allocator {
 public:
  static constexpr uint64_t kAlignment = 64;
  // Blocks of at least this size begin on a page.
  static constexpr uint64_t kPageAlignedFrom = 64 * 1024;
  static constexpr uint64_t kPage = 4096;

  explicit Allocator(uint64_t size);

  // What a block of `size` bytes takes: a multiple of 64, at least 64.
  static uint64_t RoundUp(uint64_t size);

  // The offset, or none when no free part is large enough.
  std::optional<uint64_t> Allocate(uint64_t size);
  bool Free(uint64_t offset);

  uint64_t size() const { return size_; }
  uint64_t used() const { return used_; }   // rounded sizes
  uint64_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  size_t blocks() const { return taken_.size(); }

 private:
  void AddFree(uint64_t offset, uint64_t size);
  void RemoveFree(uint64_t offset, uint64_t size);

  uint64_t size_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> free_;                      // offset -> size; no two touch
  std::set<std::pair<uint64_t, uint64_t>> by_size_;        // (size, offset) of the same
  std::unordered_map<uint64_t, uint64_t> taken_;           // offset -> size
};

}  // namespace argosy::store
