#include "runtime/store/extent_map.h"

#include <algorithm>

#include "runtime/base/status.h"

namespace argosy::store {

ExtentMap::ExtentMap(uint64_t arena_size) : arena_size_(arena_size), extents_((arena_size + kExtent - 1) / kExtent) {}

template <class Visit>
void ExtentMap::ForEach(Range range, Visit&& visit) {
  ARGOSY_CHECK(range.size > 0 && range.offset + range.size <= arena_size_);
  for (uint64_t i = range.offset / kExtent; i <= (range.offset + range.size - 1) / kExtent; ++i) visit(i);
}

uint64_t ExtentMap::SizeOf(uint64_t index) const { return std::min(kExtent, arena_size_ - index * kExtent); }

void ExtentMap::Append(std::vector<Range>& ranges, uint64_t index) const {
  uint64_t offset = index * kExtent;
  if (!ranges.empty() && ranges.back().offset + ranges.back().size == offset) ranges.back().size += SizeOf(index);
  else ranges.push_back({offset, SizeOf(index)});
}

std::vector<Range> ExtentMap::Use(Range block) {
  std::vector<Range> missing;
  ForEach(block, [&](uint64_t i) {
    ++extents_[i].users;
    if (!extents_[i].backed) Append(missing, i);
  });
  return missing;
}

void ExtentMap::SetBacked(Range range) {
  ForEach(range, [&](uint64_t i) {
    if (!extents_[i].backed) backed_ += SizeOf(i);
    extents_[i].backed = true;
  });
}

void ExtentMap::Unuse(Range block, absl::Time now) {
  ForEach(block, [&](uint64_t i) {
    ARGOSY_CHECK(extents_[i].users > 0);
    if (--extents_[i].users == 0) extents_[i].idle_since = now;
  });
}

std::vector<Range> ExtentMap::TakeIdle(absl::Time now, absl::Duration idle) {
  std::vector<Range> ranges;
  for (uint64_t i = 0; i < extents_.size(); ++i) {
    Extent& extent = extents_[i];
    if (!extent.backed || extent.users > 0 || now - extent.idle_since < idle) continue;
    extent.backed = false;
    backed_ -= SizeOf(i);
    Append(ranges, i);
  }
  return ranges;
}

}  // namespace argosy::store
