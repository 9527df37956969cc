#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "train/collective/group.h"

namespace argosy::train::internal {

// Reads elements [begin, begin + n) of `input` as floats through `f(index, value)`.
template <class F>
inline void ForEachElement(const ConstElements& input, int64_t begin, int64_t n, F f) {
  if (input.is_bf16) {
    const uint16_t* in = input.bf16.data() + begin;
    for (int64_t i = 0; i < n; ++i) {
      uint32_t bits = static_cast<uint32_t>(in[i]) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      f(i, value);
    }
  } else {
    const float* in = input.f32.data() + begin;
    for (int64_t i = 0; i < n; ++i) f(i, in[i]);
  }
}

inline void Put(const ConstElements& input, int64_t begin, std::span<float> out) {
  float* to = out.data();
  ForEachElement(input, begin, static_cast<int64_t>(out.size()), [to](int64_t i, float value) { to[i] = value; });
}

inline void Add(const ConstElements& input, int64_t begin, std::span<float> out) {
  float* to = out.data();
  ForEachElement(input, begin, static_cast<int64_t>(out.size()), [to](int64_t i, float value) { to[i] += value; });
}

}  // namespace argosy::train::internal
