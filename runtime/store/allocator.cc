#include "runtime/store/allocator.h"

#include <algorithm>

namespace argosy::store {

Allocator::Allocator(uint64_t size) : size_(size / kAlignment * kAlignment) {
  if (size_ > 0) AddFree(0, size_);
}

uint64_t Allocator::RoundUp(uint64_t size) {
  // A size near 2^64 must not wrap around to a small one.
  if (size > UINT64_MAX - kAlignment) return UINT64_MAX / kAlignment * kAlignment;
  return std::max(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
}

std::optional<uint64_t> Allocator::Allocate(uint64_t size) {
  const uint64_t want = RoundUp(size);
  const uint64_t alignment = size >= kPageAlignedFrom ? kPage : kAlignment;
  for (auto at = by_size_.lower_bound({want, 0}); at != by_size_.end(); ++at) {
    auto [free_size, free_offset] = *at;
    uint64_t offset = (free_offset + alignment - 1) / alignment * alignment;
    uint64_t skipped = offset - free_offset;
    if (free_size < skipped || free_size - skipped < want) continue;
    RemoveFree(free_offset, free_size);
    if (skipped > 0) AddFree(free_offset, skipped);
    if (uint64_t rest = free_size - skipped - want; rest > 0) AddFree(offset + want, rest);
    taken_.emplace(offset, want);
    used_ += want;
    return offset;
  }
  return std::nullopt;
}

bool Allocator::Free(uint64_t offset) {
  auto at = taken_.find(offset);
  if (at == taken_.end()) return false;
  uint64_t size = at->second;
  taken_.erase(at);
  used_ -= size;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    auto [next_offset, next_size] = *next;
    RemoveFree(next_offset, next_size);
    size += next_size;
  }
  auto previous = free_.lower_bound(offset);
  if (previous != free_.begin()) {
    auto [previous_offset, previous_size] = *std::prev(previous);
    if (previous_offset + previous_size == offset) {
      RemoveFree(previous_offset, previous_size);
      offset = previous_offset;
      size += previous_size;
    }
  }
  AddFree(offset, size);
  return true;
}

void Allocator::AddFree(uint64_t offset, uint64_t size) {
  free_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void Allocator::RemoveFree(uint64_t offset, uint64_t size) {
  free_.erase(offset);
  by_size_.erase({size, offset});
}

}  // namespace argosy::store
