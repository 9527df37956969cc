#pragma once

// How processes get at the arena: a Unix socket that hands its descriptors to any process of the same user, and the mapping they make.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/async/loop.h"
#include "runtime/base/unique_fd.h"

namespace argosy::store {

class Arena;

// A process's view of its node's arena.
//
//   auto mapping = ArenaMapping::Connect(registered.store_door);
//   std::span<std::byte> space = *(*mapping)->WritableSpan(place.offset, place.size);   // after CreateObject, before SealObject
//   std::span<const std::byte> value = *(*mapping)->ReadableSpan(place.offset, place.size);   // after GetObject, until ReleaseObject
//
// Thread:   any.
// Lifetime: spans point into it.
// Failure:  a range outside the arena is INVALID_ARGUMENT. Reading or writing a range that is not pinned or created is not prevented.
class ArenaMapping {
 public:
  // Blocking. UNAVAILABLE: nobody at the door. FAILED_PRECONDITION: a daemon of another version.
  static absl::StatusOr<std::unique_ptr<ArenaMapping>> Connect(const std::string& door_path, absl::Duration timeout = absl::Seconds(5));
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;

  absl::StatusOr<std::span<std::byte>> WritableSpan(uint64_t offset, uint64_t size) const;
  // Copies into a part of a writable span. Where this process has not written yet, it maps many pages at once, which costs half of a fault for each.
  void Write(std::byte* to, const std::byte* from, size_t size);
  // In pages that this process cannot write.
  absl::StatusOr<std::span<const std::byte>> ReadableSpan(uint64_t offset, uint64_t size) const;
  uint64_t size() const { return size_; }

 private:
  static constexpr size_t kPiece = size_t{512} << 10;

  ArenaMapping(std::byte* writable, const std::byte* readable, uint64_t size)
      : writable_(writable), readable_(readable), size_(size), written_(size / kPiece + 1) {}

  std::byte* writable_;
  const std::byte* readable_;
  uint64_t size_;
  std::vector<std::atomic<bool>> written_;   // each piece, whole, by this process
};

// Hands the arena's descriptors (read-write, and one re-opened read-only) to whoever connects as the same user.
//
// Thread:   the loop's.
// Lifetime: the arena and the loop outlive it.
// Failure:  a peer of another user, or one that does not take what it came for, is closed.
class Door {
 public:
  // The socket file is made with mode 0600; a stale one is replaced.
  static absl::StatusOr<std::unique_ptr<Door>> Open(async::Loop& loop, const Arena& arena, const std::string& path);
  ~Door();
  const std::string& path() const { return path_; }

 private:
  Door(async::Loop& loop, const Arena& arena, std::string path, UniqueFd listener);
  void Accept();

  const Arena& arena_;
  std::string path_;
  UniqueFd listener_;
  std::unique_ptr<async::FdWatch> watch_;
};

}  // namespace argosy::store
