#include "runtime/store/allocator.h"

#include <map>
#include <vector>

#include "runtime/base/prng.h"
#include "runtime/store/extent_map.h"
#include "tests/support/catch.h"

namespace argosy::store {
namespace {

// Finds by looking at every byte's owner: slow, and obviously right.
struct Oracle {
  explicit Oracle(uint64_t size) : taken(size / Allocator::kAlignment, false) {}
  bool IsFree(uint64_t offset, uint64_t size) const {
    for (uint64_t i = offset / 64; i < (offset + size) / 64; ++i) {
      if (i >= taken.size() || taken[i]) return false;
    }
    return true;
  }
  void Set(uint64_t offset, uint64_t size, bool value) {
    for (uint64_t i = offset / 64; i < (offset + size) / 64; ++i) taken[i] = value;
  }
  // Is there an aligned place for `size` bytes?
  bool Fits(uint64_t size, uint64_t alignment) const {
    for (uint64_t offset = 0; offset + size <= taken.size() * 64; offset += alignment) {
      if (IsFree(offset, size)) return true;
    }
    return false;
  }
  std::vector<bool> taken;
};

}  // namespace

TEST_CASE("Allocator: blocks never overlap, are aligned, and a place is found whenever there is one") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    constexpr uint64_t kSize = 512 * 1024;
    Prng prng(seed);
    Allocator allocator(kSize);
    Oracle oracle(kSize);
    std::map<uint64_t, uint64_t> blocks;
    uint64_t used = 0;
    for (int step = 0; step < 600; ++step) {
      if (prng.Below(100) < 60 || blocks.empty()) {
        uint64_t size = prng.Below(4) == 0 ? prng.Below(150'000) : prng.Below(3'000);
        uint64_t rounded = Allocator::RoundUp(size);
        uint64_t alignment = size >= Allocator::kPageAlignedFrom ? Allocator::kPage : Allocator::kAlignment;
        std::optional<uint64_t> offset = allocator.Allocate(size);
        REQUIRE(offset.has_value() == oracle.Fits(rounded, alignment));
        if (!offset) continue;
        REQUIRE(*offset % alignment == 0);
        REQUIRE(oracle.IsFree(*offset, rounded));
        oracle.Set(*offset, rounded, true);
        blocks[*offset] = rounded;
        used += rounded;
      } else {
        auto at = std::next(blocks.begin(), static_cast<int64_t>(prng.Below(blocks.size())));
        REQUIRE(allocator.Free(at->first));
        REQUIRE_FALSE(allocator.Free(at->first));
        oracle.Set(at->first, at->second, false);
        used -= at->second;
        blocks.erase(at);
      }
      REQUIRE(allocator.used() == used);
    }
    for (const auto& [offset, size] : blocks) REQUIRE(allocator.Free(offset));
    // All parts have grown together again.
    REQUIRE(allocator.largest_free() == kSize);
  }
}

TEST_CASE("Allocator: absurd sizes find no place") {
  Allocator allocator(1 << 20);
  REQUIRE_FALSE(allocator.Allocate(UINT64_MAX).has_value());
  REQUIRE_FALSE(allocator.Allocate((1 << 20) + 1).has_value());
  REQUIRE(allocator.Allocate(0).has_value());
}

TEST_CASE("ExtentMap: only extents that nobody uses for long are given back, and are asked for again") {
  constexpr uint64_t kExtent = ExtentMap::kExtent;
  ExtentMap extents(4 * kExtent + 100);
  absl::Time now = absl::UnixEpoch();
  REQUIRE(extents.Use({10, 100}) == std::vector<Range>{{0, kExtent}});
  extents.SetBacked({0, kExtent});
  REQUIRE(extents.Use({500, 10}).empty());
  // A block over three extents of which the first is backed; the last one of the arena is short.
  REQUIRE(extents.Use({kExtent - 64, 2 * kExtent}) == std::vector<Range>{{kExtent, 2 * kExtent}});
  extents.SetBacked({kExtent, 2 * kExtent});
  REQUIRE(extents.Use({4 * kExtent, 64}) == std::vector<Range>{{4 * kExtent, 100}});
  REQUIRE(extents.backed_bytes() == 3 * kExtent);

  extents.Unuse({kExtent - 64, 2 * kExtent}, now);
  REQUIRE(extents.TakeIdle(now + absl::Seconds(59), absl::Minutes(1)).empty());
  // The first is still used by the two small blocks.
  REQUIRE(extents.TakeIdle(now + absl::Seconds(60), absl::Minutes(1)) == std::vector<Range>{{kExtent, 2 * kExtent}});
  REQUIRE(extents.backed_bytes() == kExtent);
  REQUIRE(extents.Use({kExtent, 64}) == std::vector<Range>{{kExtent, kExtent}});
}

}  // namespace argosy::store
