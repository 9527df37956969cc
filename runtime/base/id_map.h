#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "runtime/base/id.h"

namespace argosy {

// Random ids are good hashes already; the mixing is for numbered ones.
struct IdHash {
  template <class Tag>
  size_t operator()(const Id<Tag>& id) const { return Mix(id.Hash()); }
  static size_t Mix(uint64_t bits) {
    bits ^= bits >> 32;
    bits *= 0x9e3779b97f4a7c15;
    return bits ^ bits >> 32;
  }
};

// For tables on hot paths: no allocation an entry. Unlike in std::unordered_map an insertion moves the other entries.
template <class Key, class Value>
using IdMap = absl::flat_hash_map<Key, Value, IdHash>;

}  // namespace argosy
