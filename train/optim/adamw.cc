#include "train/optim/adamw.h"

#include <algorithm>
#include <type_traits>

// One build of each loop for the vector widths of x86-64, chosen at start; elsewhere the compiler's own width.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ARGOSY_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ARGOSY_VECTOR_CLONES
#endif

namespace argosy::train {
namespace {

ARGOSY_VECTOR_CLONES void PassF32(float* __restrict p, float* __restrict m, float* __restrict v, const float* __restrict g, size_t n,
                                  AdamWScalars s) {
  for (size_t i = 0; i < n; ++i) AdamWElement(p[i], m[i], v[i], g[i], s);
}

[[gnu::always_inline]] inline float Value(float x) { return x; }
[[gnu::always_inline]] inline float Value(uint16_t bf16) { return FloatFromBf16(bf16); }

// Inlined into the builds of each width.
template <class Moment, class Gradient>
[[gnu::always_inline]] inline void Bf16Elements(uint16_t* __restrict p, uint16_t* __restrict low, Moment* __restrict m, Moment* __restrict v,
                                                const Gradient* __restrict g, size_t n, const AdamWScalars& s, uint32_t first, uint32_t key) {
  for (size_t i = 0; i < n; ++i) {
    float master = Join({p[i], low[i]});
    if constexpr (std::is_same_v<Moment, float>) {
      AdamWElement(master, m[i], v[i], Value(g[i]), s);
    } else {
      const uint32_t random = RoundingBits(key, first + static_cast<uint32_t>(i));
      float moment1 = Value(m[i]), moment2 = Value(v[i]);
      AdamWElement(master, moment1, moment2, Value(g[i]), s);
      m[i] = RoundToBf16(moment1, random & 0xffffu);
      v[i] = RoundToBf16(moment2, random >> 16);
    }
    SplitFloat halves = Split(master);
    p[i] = halves.parameter;
    low[i] = halves.low;
  }
}
ARGOSY_VECTOR_CLONES void PassBf16(uint16_t* __restrict p, uint16_t* __restrict low, float* __restrict m, float* __restrict v,
                                   const float* __restrict g, size_t n, AdamWScalars s, uint32_t first, uint32_t key) {
  Bf16Elements(p, low, m, v, g, n, s, first, key);
}
ARGOSY_VECTOR_CLONES void PassBf16(uint16_t* __restrict p, uint16_t* __restrict low, float* __restrict m, float* __restrict v,
                                   const uint16_t* __restrict g, size_t n, AdamWScalars s, uint32_t first, uint32_t key) {
  Bf16Elements(p, low, m, v, g, n, s, first, key);
}
ARGOSY_VECTOR_CLONES void PassBf16(uint16_t* __restrict p, uint16_t* __restrict low, uint16_t* __restrict m, uint16_t* __restrict v,
                                   const float* __restrict g, size_t n, AdamWScalars s, uint32_t first, uint32_t key) {
  Bf16Elements(p, low, m, v, g, n, s, first, key);
}
ARGOSY_VECTOR_CLONES void PassBf16(uint16_t* __restrict p, uint16_t* __restrict low, uint16_t* __restrict m, uint16_t* __restrict v,
                                   const uint16_t* __restrict g, size_t n, AdamWScalars s, uint32_t first, uint32_t key) {
  Bf16Elements(p, low, m, v, g, n, s, first, key);
}

template <class T>
[[gnu::always_inline]] inline void AddSquares(const T* __restrict x, size_t n, double* __restrict lanes) {
  for (size_t i = 0; i + 8 <= n; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += static_cast<double>(Value(x[i + lane])) * static_cast<double>(Value(x[i + lane]));
  }
}
ARGOSY_VECTOR_CLONES void SquaresByLane(const float* __restrict x, size_t n, double* __restrict lanes) { AddSquares(x, n, lanes); }
ARGOSY_VECTOR_CLONES void SquaresByLane(const uint16_t* __restrict x, size_t n, double* __restrict lanes) { AddSquares(x, n, lanes); }

template <class T>
double SumOfSquaresOf(std::span<const T> values) {
  double lanes[8] = {};
  SquaresByLane(values.data(), values.size(), lanes);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  for (size_t i = values.size() / 8 * 8; i < values.size(); ++i) sum += static_cast<double>(Value(values[i])) * static_cast<double>(Value(values[i]));
  return sum;
}

}  // namespace

AdamWScalars ScalarsFor(const AdamWOptions& options, int64_t step, double lr, double weight_decay, double gradient_scale) {
  double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  return {.decay = static_cast<float>(1 - lr * weight_decay),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .bias_correction2_sqrt = static_cast<float>(std::sqrt(correction2)),
          .eps = static_cast<float>(options.eps),
          .minus_step_size = static_cast<float>(-(lr / correction1)),
          .gradient_scale = static_cast<float>(gradient_scale)};
}

void AdamWStepF32(std::span<float> parameter, const AdamWSlice& slice, const AdamWScalars& scalars) {
  PassF32(parameter.data(), slice.moment1.data(), slice.moment2.data(), slice.gradient.data(), parameter.size(), scalars);
}

void AdamWStepBf16(std::span<uint16_t> parameter, std::span<uint16_t> low, const AdamWSlice& slice, const AdamWScalars& scalars) {
  auto pass = [&](auto* moment1, auto* moment2) {
    auto with = [&](auto* gradient) {
      PassBf16(parameter.data(), low.data(), moment1, moment2, gradient, parameter.size(), scalars, slice.first, slice.key);
    };
    slice.gradient_bf16.empty() ? with(slice.gradient.data()) : with(slice.gradient_bf16.data());
  };
  slice.moment1_bf16.empty() ? pass(slice.moment1.data(), slice.moment2.data()) : pass(slice.moment1_bf16.data(), slice.moment2_bf16.data());
}

double SumOfSquares(std::span<const float> values) { return SumOfSquaresOf(values); }
double SumOfSquares(std::span<const uint16_t> bf16_values) { return SumOfSquaresOf(bf16_values); }

double ClipScale(double norm, double max_norm) {
  if (max_norm <= 0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace argosy::train
