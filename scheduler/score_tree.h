#pragma once

// The least of many scores, for many shapes at once.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/base/prng.h"

namespace argosy::scheduler {

// A tournament tree over slots. Each vertex holds one cache line of scores, one for each of kWidth shapes: a leaf how good its slot is for the
// shape (lower is better, kNever: not usable), an inner vertex the least of the two below it. So one slot's change is told to all shapes by a
// few vector instructions a level, it ends at the level where nothing changes, and the slot a shape wants is found by following its least score
// down: both cost the logarithm of the number of slots, whatever lies in them.
//
// Thread:   its owner's.
// Failure:  none; slots and shapes out of range are the caller's bug.
template <class Score>
class ScoreTree {
 public:
  static constexpr size_t kWidth = 64 / sizeof(Score);
  static constexpr Score kNever = std::numeric_limits<Score>::max();
  struct alignas(64) Scores {
    std::array<Score, kWidth> of;
    friend bool operator==(const Scores&, const Scores&) = default;
  };

  // `leaves` slots, a power of two or 0, none usable.
  void Reset(size_t leaves) {
    leaves_ = leaves;
    vertices_.assign(2 * leaves, Never());
  }
  size_t leaves() const { return leaves_; }

  // For filling many slots: Join must follow.
  Scores& leaf(size_t slot) { return vertices_[leaves_ + slot]; }
  void Join() {
    for (size_t vertex = leaves_; vertex-- > 1;) vertices_[vertex] = Less(vertices_[2 * vertex], vertices_[2 * vertex + 1]);
  }

  void Set(size_t slot, const Scores& scores) {
    size_t vertex = leaves_ + slot;
    if (vertices_[vertex] == scores) return;
    vertices_[vertex] = scores;
    for (vertex /= 2; vertex >= 1; vertex /= 2) {
      const Scores joined = Less(vertices_[2 * vertex], vertices_[2 * vertex + 1]);
      if (vertices_[vertex] == joined) return;
      vertices_[vertex] = joined;
    }
  }

  // The least score that any slot has for the shape, or kNever.
  Score Least(size_t shape) const { return leaves_ == 0 ? kNever : vertices_[1].of[shape]; }
  // The first slot with a score below `bound`; Least(shape) must be.
  size_t FirstBelow(size_t shape, Score bound) const {
    size_t vertex = 1;
    while (vertex < leaves_) {
      vertex *= 2;
      if (vertices_[vertex].of[shape] >= bound) ++vertex;
    }
    return vertex - leaves_;
  }
  // The slot with the least score, ties at random; Least(shape) must not be kNever.
  size_t FindLeast(size_t shape, Prng& prng) const {
    size_t vertex = 1;
    while (vertex < leaves_) {
      vertex *= 2;
      const Score left = vertices_[vertex].of[shape], right = vertices_[vertex + 1].of[shape];
      if (right < left || (right == left && prng.Below(2) == 1)) ++vertex;
    }
    return vertex - leaves_;
  }

  // Calls `visit` with the usable slots from the least score on, equal ones in their order, until it returns false.
  template <class Visit>
  void Ascending(size_t shape, Visit visit) const {
    if (Least(shape) == kNever) return;
    // Of equal scores the deepest vertex first, so that each slot costs one way down.
    auto after = [](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first > b.first;
      const int depth_a = std::bit_width(a.second), depth_b = std::bit_width(b.second);
      return depth_a != depth_b ? depth_a < depth_b : a.second > b.second;
    };
    std::vector<std::pair<Score, size_t>> heap{{Least(shape), 1}};
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), after);
      const size_t vertex = heap.back().second;
      heap.pop_back();
      if (vertex >= leaves_) {
        if (!visit(vertex - leaves_)) return;
        continue;
      }
      for (size_t below : {2 * vertex, 2 * vertex + 1}) {
        if (vertices_[below].of[shape] == kNever) continue;
        heap.push_back({vertices_[below].of[shape], below});
        std::push_heap(heap.begin(), heap.end(), after);
      }
    }
  }

  static Scores Never() {
    Scores never;
    never.of.fill(kNever);
    return never;
  }

 private:
  static Scores Less(const Scores& a, const Scores& b) {
    Scores less;
    for (size_t i = 0; i < kWidth; ++i) less.of[i] = a.of[i] < b.of[i] ? a.of[i] : b.of[i];
    return less;
  }

  size_t leaves_ = 0;
  std::vector<Scores> vertices_;   // 1 is the root; slot i is leaves_ + i
};

}  // namespace argosy::scheduler
