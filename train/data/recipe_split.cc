#include "train/data/recipe_split.h"

#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

namespace argosy::train {
namespace {

using uint128 = unsigned __int128;

// NumPy's SeedSequence (after Neill's seed_seq_fe): mixes the seed's 32-bit words into a pool of four, from which any number of words is drawn.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    std::vector<uint32_t> entropy;
    do {
      entropy.push_back(static_cast<uint32_t>(seed));
      seed >>= 32;
    } while (seed > 0);
    uint32_t constant = 0x43b0d7e5;
    auto hash = [&](uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875;
      value *= constant;
      return value ^ value >> 16;
    };
    auto mix = [](uint32_t x, uint32_t y) {
      uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
      return result ^ result >> 16;
    };
    for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(i < entropy.size() ? entropy[i] : 0);
    for (std::size_t from = 0; from < pool_.size(); ++from) {
      for (std::size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash(pool_[from]));
      }
    }
  }

  std::array<uint64_t, 4> Words64() const {
    std::array<uint32_t, 8> words;
    uint32_t constant = 0x8b51f9dd;
    for (std::size_t i = 0; i < words.size(); ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38ded;
      value *= constant;
      words[i] = value ^ value >> 16;
    }
    std::array<uint64_t, 4> out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32;
    return out;
  }

 private:
  std::array<uint32_t, 4> pool_;
};

class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed) {
    auto words = SeedSequence(seed).Words64();
    uint128 start = static_cast<uint128>(words[0]) << 64 | words[1];
    uint128 sequence = static_cast<uint128>(words[2]) << 64 | words[3];
    increment_ = sequence << 1 | 1;
    Advance();
    state_ += start;
    Advance();
  }

  uint64_t Next64() {
    Advance();
    uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    auto turn = static_cast<unsigned>(state_ >> 122);
    return folded >> turn | folded << ((64 - turn) & 63);
  }
  // Halves of 64-bit words, the lower one first.
  uint32_t Next32() {
    if (std::exchange(has_half_, !has_half_)) return half_;
    uint64_t next = Next64();
    half_ = static_cast<uint32_t>(next >> 32);
    return static_cast<uint32_t>(next);
  }
  // Uniform in 0 to max: masked rejection, as NumPy's random_interval.
  uint64_t UpTo(uint64_t max) {
    if (max == 0) return 0;
    uint64_t mask = ~uint64_t{0} >> __builtin_clzll(max);
    uint64_t value;
    do {
      value = (max <= 0xffffffffu ? Next32() : Next64()) & mask;
    } while (value > max);
    return value;
  }

 private:
  void Advance() { state_ = state_ * (static_cast<uint128>(2549297995355413924ull) << 64 | 4865540595714422341ull) + increment_; }

  uint128 state_ = 0, increment_ = 0;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

}  // namespace

std::vector<int64_t> NumpyPermutation(uint64_t seed, int64_t count) {
  std::vector<int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Pcg64 random(seed);
  for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.UpTo(static_cast<uint64_t>(i))]);
  return order;
}

}  // namespace argosy::train
