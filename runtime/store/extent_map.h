#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace argosy::store {

struct Range {
  uint64_t offset = 0;
  uint64_t size = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

// Which extents of an arena are backed by memory, and since when nobody uses them.
//
// Thread:   its owner's.
// Failure:  none; a range outside the arena is its owner's bug.
class ExtentMap {
 public:
  static constexpr uint64_t kExtent = 2ull << 20;

  explicit ExtentMap(uint64_t arena_size);

  // A block was allocated. What has to be backed before it may be written: whole extents, neighbours merged.
  std::vector<Range> Use(Range block);
  // Memory for `range` (as given by Use) is there.
  void SetBacked(Range range);
  // A block was freed.
  void Unuse(Range block, absl::Time now);
  // Extents that nobody has used for `idle`: they count as not backed from now on, and their memory is to be given back.
  std::vector<Range> TakeIdle(absl::Time now, absl::Duration idle);

  uint64_t backed_bytes() const { return backed_; }

 private:
  struct Extent {
    uint32_t users = 0;
    bool backed = false;
    absl::Time idle_since;
  };
  template <class Visit>
  void ForEach(Range range, Visit&& visit);
  uint64_t SizeOf(uint64_t index) const;
  // Appends extent `index` to `ranges`, merged with the last one when they touch.
  void Append(std::vector<Range>& ranges, uint64_t index) const;

  uint64_t arena_size_;
  std::vector<Extent> extents_;
  uint64_t backed_ = 0;
};

}  // namespace argosy::store
