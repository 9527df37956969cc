#pragma once

// Ids are distinct types of 16 random bytes, so that a NodeId cannot be passed where a WorkerId is meant.

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace argosy {

namespace internal {
// From the kernel's generator: unique across hosts. Not for the pure cores, which take ids from their events.
void FillRandom(unsigned char* out, size_t size);
std::string ToHex(const unsigned char* bytes, size_t size);
bool FromHex(std::string_view hex, unsigned char* out, size_t size);
}  // namespace internal

template <class Tag>
class Id {
 public:
  static constexpr size_t kSize = 16;

  // The nil id: "none".
  constexpr Id() = default;

  static Id Random() {
    Id id;
    internal::FillRandom(id.bytes_.data(), kSize);
    return id;
  }
  // From 32 hex digits, none if the text is anything else.
  static std::optional<Id> FromHex(std::string_view hex) {
    Id id;
    if (!internal::FromHex(hex, id.bytes_.data(), kSize)) return std::nullopt;
    return id;
  }
  // From exactly 16 raw bytes, none if the size differs.
  static std::optional<Id> FromBytes(std::string_view bytes) {
    if (bytes.size() != kSize) return std::nullopt;
    Id id;
    std::memcpy(id.bytes_.data(), bytes.data(), kSize);
    return id;
  }
  // A readable id for tests and simulations: `number` in the last 8 bytes.
  static constexpr Id FromNumber(uint64_t number) {
    Id id;
    for (size_t i = 0; i < 8; ++i) id.bytes_[kSize - 1 - i] = static_cast<unsigned char>(number >> (8 * i));
    return id;
  }

  bool IsNil() const { return *this == Id(); }
  std::string_view Bytes() const { return {reinterpret_cast<const char*>(bytes_.data()), kSize}; }
  std::string Hex() const { return internal::ToHex(bytes_.data(), kSize); }
  // The first 8 hex digits, for messages.
  std::string Short() const { return internal::ToHex(bytes_.data(), 4); }

  // Two words each: tables compare ids at every look.
  friend bool operator==(const Id& a, const Id& b) {
    uint64_t x[2], y[2];
    std::memcpy(x, a.bytes_.data(), kSize);
    std::memcpy(y, b.bytes_.data(), kSize);
    return ((x[0] ^ y[0]) | (x[1] ^ y[1])) == 0;
  }
  friend auto operator<=>(const Id&, const Id&) = default;
  template <class H>
  friend H AbslHashValue(H state, const Id& id) {
    return H::combine_contiguous(std::move(state), id.bytes_.data(), kSize);
  }
  size_t Hash() const {
    size_t hash;
    std::memcpy(&hash, bytes_.data() + kSize - sizeof hash, sizeof hash);
    return hash;
  }

 private:
  std::array<unsigned char, kSize> bytes_{};
};

using NodeId = Id<struct NodeTag>;
using WorkerId = Id<struct WorkerTag>;
using JobId = Id<struct JobTag>;          // one driver's id; a submitted job also has a name, its submission id
using TaskId = Id<struct TaskTag>;
using ObjectId = Id<struct ObjectTag>;
using ActorId = Id<struct ActorTag>;
using LeaseId = Id<struct LeaseTag>;
using GroupId = Id<struct GroupTag>;      // placement group

// The id of return value `index` of a task: the task's id with `index + 1` added to its last 4 bytes.
ObjectId ReturnId(TaskId task, uint32_t index);

}  // namespace argosy

template <class Tag>
struct std::hash<argosy::Id<Tag>> {
  size_t operator()(const argosy::Id<Tag>& id) const { return id.Hash(); }
};
