#pragma once

// AdamW on a flat shard of parameters, exact to fp32.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "train/config/dtype.h"

namespace argosy::train {

// The fp32 master of a bf16 parameter is kept in two halves: the parameter itself, which is the master rounded half up, and the
// master's lower 16 bits beside the optimizer's moments. Together they hold the master exactly; nothing is stored twice.
struct SplitFloat {
  uint16_t parameter = 0;  // bf16 bits
  uint16_t low = 0;
};

inline SplitFloat Split(float master) {
  uint32_t bits;
  std::memcpy(&bits, &master, sizeof bits);
  // One NaN: others could carry past the top when rounded.
  bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bits = nan ? 0x7fc00000u : bits;
  return {.parameter = static_cast<uint16_t>((bits + 0x8000u) >> 16), .low = static_cast<uint16_t>(bits)};
}

// The inverse: the upper half is the parameter, less one where Split rounded up.
inline float Join(SplitFloat halves) {
  uint32_t upper = static_cast<uint32_t>(halves.parameter) - (halves.low >> 15);
  uint32_t bits = (upper << 16) | halves.low;
  float master;
  std::memcpy(&master, &bits, sizeof master);
  return master;
}

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

// The numbers of one step, as torch.optim.adamw's _single_tensor_adamw derives them in double; each is rounded to fp32 where it
// meets a tensor, as there.
struct AdamWScalars {
  float decay;              // 1 - lr * weight_decay
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float bias_correction2_sqrt;
  float eps;
  float minus_step_size;    // -lr / (1 - beta1^step)
  float gradient_scale;     // clipping; multiplied into the gradient first
};
// `step` counts from 1.
AdamWScalars ScalarsFor(const AdamWOptions& options, int64_t step, double lr, double weight_decay, double gradient_scale);

// One element, the definition of what the vectorised pass computes: p *= 1 - lr wd; m.lerp_(g, 1 - beta1);
// v.mul_(beta2).addcmul_(g, g, 1 - beta2); p.addcdiv_(m, sqrt(v) / sqrt(1 - beta2^t) + eps, -lr / (1 - beta1^t)).
inline void AdamWElement(float& p, float& m, float& v, float gradient, const AdamWScalars& s) {
  float g = gradient * s.gradient_scale;
  p = p * s.decay;
  m = m + s.one_minus_beta1 * (g - m);
  v = v * s.beta2 + (s.one_minus_beta2 * g) * g;
  float denominator = std::sqrt(v) / s.bias_correction2_sqrt + s.eps;
  p = p + (s.minus_step_size * m) / denominator;
}

// Parameters and moments of consecutive elements; all spans have one size.
struct AdamWSlice {
  std::span<float> moment1 = {};
  std::span<float> moment2 = {};
  std::span<const float> gradient = {};
  // Of a bf16 parameter, where they are not empty: in place of the above.
  std::span<uint16_t> moment1_bf16 = {};
  std::span<uint16_t> moment2_bf16 = {};
  std::span<const uint16_t> gradient_bf16 = {};
  // What moments in bf16 are rounded by: the number of the slice's first element, and of the step and the unit it is in.
  uint32_t first = 0;
  uint32_t key = 0;
};

// 32 bits that `key` and the element's number alone determine.
inline uint32_t RoundingBits(uint32_t key, uint32_t element) {
  uint32_t x = key ^ (element * 0x9e3779b9u);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Up with the probability of what is cut off: a step moves the second moment by a thousandth of itself, which rounding to nearest, to the 256th, would
// lose for ever. `random` has 16 bits.
inline uint16_t RoundToBf16(float value, uint32_t random) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? 0x7fc0u : (bits + random) >> 16);
}
void AdamWStepF32(std::span<float> parameter, const AdamWSlice& slice, const AdamWScalars& scalars);
void AdamWStepBf16(std::span<uint16_t> parameter, std::span<uint16_t> low, const AdamWSlice& slice, const AdamWScalars& scalars);

// The oracle: the same elements through AdamWElement one by one. Tests hold the passes above to its bits.
void AdamWStepF32Scalar(std::span<float> parameter, const AdamWSlice& slice, const AdamWScalars& scalars);
void AdamWStepBf16Scalar(std::span<uint16_t> parameter, std::span<uint16_t> low, const AdamWSlice& slice,
                         const AdamWScalars& scalars);

// Sum of squares in double, in an order that the values' places alone determine.
double SumOfSquares(std::span<const float> values);
double SumOfSquares(std::span<const uint16_t> bf16_values);

// What torch.nn.utils.clip_grad_norm_ multiplies gradients by: min(1, max_norm / (norm + 1e-6)). max_norm 0 means no clipping.
double ClipScale(double norm, double max_norm);

}  // namespace argosy::train
