#include "train/model/row_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

// One build of each loop for the vector widths of x86-64, chosen at start; elsewhere the compiler's own width. By hand and not by target_clones, which
// knows no AVX-512 with 16-bit elements: bf16 loops then run at a quarter of the width.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ARGOSY_BY_WIDTH
#define ARGOSY_KERNEL(RESULT, NAME, PARAMETERS, ARGUMENTS)                                                                      \
  namespace {                                                                                                                  \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) RESULT NAME##512 PARAMETERS {         \
    return NAME##Rows ARGUMENTS;                                                                                               \
  }                                                                                                                            \
  __attribute__((target("avx2,fma"))) RESULT NAME##256 PARAMETERS { return NAME##Rows ARGUMENTS; }                                 \
  RESULT NAME##Any PARAMETERS { return NAME##Rows ARGUMENTS; }                                                                 \
  }                                                                                                                            \
  RESULT NAME PARAMETERS { return VectorBits() == 512 ? NAME##512 ARGUMENTS : VectorBits() == 256 ? NAME##256 ARGUMENTS : NAME##Any ARGUMENTS; }
#else
#define ARGOSY_KERNEL(RESULT, NAME, PARAMETERS, ARGUMENTS) \
  RESULT NAME PARAMETERS { return NAME##Rows ARGUMENTS; }
#endif
// Inlined into each build.
#define ARGOSY_INLINE [[gnu::always_inline]] inline

namespace argosy::train::rows {
namespace {

#ifdef ARGOSY_BY_WIDTH
int VectorBits() {
  static const int bits = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") ? 512
                          : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")                                              ? 256
                                                                                                                                         : 128;
  return bits;
}
#endif

ARGOSY_INLINE float Load(float x) { return x; }
ARGOSY_INLINE float Load(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
ARGOSY_INLINE void Store(float& to, float x) { to = x; }
ARGOSY_INLINE void Store(Bf16& to, float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
template <class T>
ARGOSY_INLINE float Rounded(float x) {
  T value;
  Store(value, x);
  return Load(value);
}

ARGOSY_INLINE float ExpInline(float x) {
  // Cody and Waite: x = n ln 2 + r, |r| <= ln 2 / 2; the polynomial is Cephes' expf.
  x = -87.3f > x ? -87.3f : x;
  x = 88.37f < x ? 88.37f : x;   // 2^n is finite up to here
  constexpr float kMagic = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer
  float shifted = x * 1.44269504088896341f + kMagic;
  float n = shifted - kMagic;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kMagic) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

// Sums by lane, so that the order does not depend on the width of the machine's vectors.
constexpr int kLanes = 16;
template <class F>
ARGOSY_INLINE float SumOf(int64_t n, F value) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += value(i);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}
// By integers that are ordered as the floats are: unlike a maximum of floats, which is to pass over NaN, compilers make vector instructions of it.
template <class T>
ARGOSY_INLINE float MaxOf(const T* __restrict x, int64_t n) {
  auto ordered = [=](int64_t i) {
    auto bits = std::bit_cast<int32_t>(Load(x[i]));
    return bits ^ ((bits >> 31) & 0x7fffffff);
  };
  int32_t most = std::bit_cast<int32_t>(-INFINITY) ^ 0x7fffffff;
  for (int64_t i = 0; i < n; ++i) most = ordered(i) > most ? ordered(i) : most;
  return std::bit_cast<float>(most ^ ((most >> 31) & 0x7fffffff));
}

template <class T>
ARGOSY_INLINE void RmsNormRows(const T* __restrict x, const T* __restrict weight, int64_t rows, int64_t width, float eps, T* __restrict y, float* __restrict inverse) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    float squares = SumOf(width, [x](int64_t i) { return Load(x[i]) * Load(x[i]); });
    float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
    inverse[row] = scale;
    for (int64_t i = 0; i < width; ++i) Store(y[i], Rounded<T>(Load(x[i]) * scale) * Load(weight[i]));
  }
}

template <class T>
ARGOSY_INLINE void RmsNormBackwardRows(const T* __restrict x, const T* __restrict weight, const float* __restrict inverse, const T* __restrict grad_y, const T* __restrict add, int64_t rows, int64_t width, T* __restrict grad_x,
                                       float* __restrict grad_weight) {
  for (int64_t row = 0; row < rows; ++row, x += width, grad_y += width, grad_x += width) {
    const float scale = inverse[row];
    float dot = SumOf(width, [=](int64_t i) { return Load(grad_y[i]) * Load(weight[i]) * (Load(x[i]) * scale); });
    dot /= static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) {
      float normed = Load(x[i]) * scale, g = Load(grad_y[i]);
      grad_weight[i] += g * Rounded<T>(normed);
      float d = scale * (g * Load(weight[i]) - normed * dot);
      Store(grad_x[i], add != nullptr ? Load(add[i]) + d : d);
    }
    if (add != nullptr) add += width;
  }
}

template <class T>
ARGOSY_INLINE void RotateRows(const T* __restrict x, int64_t x_stride, const T* __restrict cos, const T* __restrict sin, int64_t heads, int64_t head_dim, float direction, T* __restrict y, int64_t y_stride) {
  const int64_t half = head_dim / 2;
  for (int64_t head = 0; head < heads; ++head, x += x_stride, y += y_stride) {
    for (int64_t i = 0; i < half; ++i) {
      // Both halves have equal angles.
      float c = Load(cos[i]), s = direction * Load(sin[i]), low = Load(x[i]), high = Load(x[i + half]);
      Store(y[i], Rounded<T>(low * c) - Rounded<T>(high * s));
      Store(y[i + half], Rounded<T>(high * c) + Rounded<T>(low * s));
    }
  }
}

template <class T>
ARGOSY_INLINE void SwiGluRows(const T* __restrict gate, const T* __restrict up, int64_t n, T* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    float g = Load(gate[i]);
    Store(out[i], Rounded<T>(g * (1.0f / (1.0f + ExpInline(-g)))) * Load(up[i]));
  }
}

template <class T>
ARGOSY_INLINE void SwiGluBackwardRows(T* __restrict gate, T* __restrict up, const T* __restrict grad_out, int64_t n, T* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    float g = Load(gate[i]), u = Load(up[i]), d = Load(grad_out[i]);
    float sigmoid = 1.0f / (1.0f + ExpInline(-g)), silu = g * sigmoid, rounded = Rounded<T>(silu);
    Store(out[i], rounded * u);
    Store(gate[i], Rounded<T>(d * u) * (sigmoid + silu * (1.0f - sigmoid)));
    Store(up[i], d * rounded);
  }
}

ARGOSY_INLINE float SoftmaxRows(float* scores, int64_t n, int64_t begin, int64_t end, float scale) {
  if (begin >= end) {
    for (int64_t i = 0; i < n; ++i) scores[i] = 1.0f / static_cast<float>(n);
    return 0;
  }
  float* seen = scores + begin;
  const int64_t count = end - begin;
  const float most = scale * MaxOf(seen, count);
  for (int64_t i = 0; i < begin; ++i) scores[i] = 0.0f;
  for (int64_t i = 0; i < count; ++i) seen[i] = ExpInline(seen[i] * scale - most);
  for (int64_t i = end; i < n; ++i) scores[i] = 0.0f;
  const float sum = SumOf(count, [=](int64_t i) { return seen[i]; }), factor = 1.0f / sum;
  for (int64_t i = 0; i < count; ++i) seen[i] *= factor;
  return most + std::log(sum);
}

ARGOSY_INLINE void SoftmaxBackwardRows(float* __restrict scores, int64_t n, int64_t begin, int64_t end, float scale, float log_sum,
                                      float* __restrict grad_weights) {
  if (begin >= end) {
    const float weight = 1.0f / static_cast<float>(n), mean = SumOf(n, [=](int64_t i) { return grad_weights[i]; }) * weight;
    for (int64_t i = 0; i < n; ++i) grad_weights[i] = weight * (grad_weights[i] - mean) * scale;
    for (int64_t i = 0; i < n; ++i) scores[i] = weight;
    return;
  }
  float* __restrict seen = scores + begin;
  float* __restrict grad = grad_weights + begin;
  const int64_t count = end - begin;
  for (int64_t i = 0; i < begin; ++i) scores[i] = grad_weights[i] = 0.0f;
  for (int64_t i = 0; i < count; ++i) seen[i] = ExpInline(seen[i] * scale - log_sum);
  for (int64_t i = end; i < n; ++i) scores[i] = grad_weights[i] = 0.0f;
  // A row's gradients add up to 0. What keeps them from it, and would reach a key bias' gradient, in which all else cancels, is the rounding of the
  // mean: of the weights, which add up to 1 but for theirs, and once more of what is left without the first mean.
  const float sum = SumOf(count, [=](int64_t i) { return seen[i]; });
  const float mean = SumOf(count, [=](int64_t i) { return seen[i] * grad[i]; }) / sum;
  const float rest = SumOf(count, [=](int64_t i) { return seen[i] * (grad[i] - mean); }) / sum;
  for (int64_t i = 0; i < count; ++i) grad[i] = seen[i] * ((grad[i] - mean) - rest) * scale;
}

// kLanes numbers as one value: these loops keep several sums of that many, which compilers do not make vectors of by themselves.
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));
ARGOSY_INLINE void LoadLanes(Floats& to, const float* x) { std::memcpy(&to, x, sizeof to); }
ARGOSY_INLINE void LoadLanes(Floats& to, const Bf16* x) {
  Halves halves;
  std::memcpy(&halves, x, sizeof halves);
  to = reinterpret_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
}
ARGOSY_INLINE void StoreLanes(float* to, const Floats& x) { std::memcpy(to, &x, sizeof x); }
ARGOSY_INLINE void StoreLanes(Bf16* to, const Floats& x) {
  const Words bits = reinterpret_cast<Words>(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words chosen = (bits & 0x7fffffffu) > 0x7f800000u ? Words{} + 0x7fc0u : rounded;
  const Halves halves = __builtin_convertvector(chosen, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// kRanks rows of the matrix at a time: as many sums as there are registers for.
constexpr int kRanks = 8;
template <int Ranks, class T>
ARGOSY_INLINE void ReduceSome(const T* x, const float* a, int64_t width, float* low) {
  Floats sums[Ranks] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Floats values, row;
    LoadLanes(values, x + i);
    for (int k = 0; k < Ranks; ++k) {
      LoadLanes(row, a + k * width + i);
      sums[k] += values * row;
    }
  }
  for (int k = 0; k < Ranks; ++k) {
    float lanes[kLanes];
    StoreLanes(lanes, sums[k]);
    for (int64_t rest = i; rest < width; ++rest) lanes[rest - i] += Load(x[rest]) * a[k * width + rest];
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    low[k] = lanes[0];
  }
}
template <class T>
ARGOSY_INLINE void LowRankReduceRows(const T* x, const float* a, int64_t rank, int64_t width, float* low) {
  int64_t k = 0;
  for (; k + kRanks <= rank; k += kRanks) ReduceSome<kRanks>(x, a + k * width, width, low + k);
  for (; k < rank; ++k) ReduceSome<1>(x, a + k * width, width, low + k);
}

template <class T>
ARGOSY_INLINE void LowRankExpandRows(const float* low, const float* a, int64_t rank, int64_t width, T* y) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Floats sum = {}, row;
    for (int64_t k = 0; k < rank; ++k) {
      LoadLanes(row, a + k * width + i);
      sum += low[k] * row;
    }
    LoadLanes(row, y + i);
    StoreLanes(y + i, row + sum);
  }
  for (; i < width; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < rank; ++k) sum += low[k] * a[k * width + i];
    Store(y[i], Load(y[i]) + sum);
  }
}

template <int Ranks, class T>
ARGOSY_INLINE void OuterSome(const T* x, const float* low, int64_t rows, int64_t rank, int64_t width, int64_t begin, int64_t end, float* grad) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    Floats sums[Ranks] = {}, values;
    for (int64_t t = 0; t < rows; ++t) {
      LoadLanes(values, x + t * width + i);
      for (int k = 0; k < Ranks; ++k) sums[k] += low[t * rank + k] * values;
    }
    for (int k = 0; k < Ranks; ++k) {
      LoadLanes(values, grad + k * width + i);
      StoreLanes(grad + k * width + i, values + sums[k]);
    }
  }
  for (; i < end; ++i) {
    for (int k = 0; k < Ranks; ++k) {
      float sum = 0;
      for (int64_t t = 0; t < rows; ++t) sum += low[t * rank + k] * Load(x[t * width + i]);
      grad[k * width + i] += sum;
    }
  }
}
template <class T>
ARGOSY_INLINE void LowRankOuterRows(const T* x, const float* low, int64_t rows, int64_t rank, int64_t width, int64_t begin, int64_t end, float* grad) {
  int64_t k = 0;
  for (; k + kRanks <= rank; k += kRanks) OuterSome<kRanks>(x, low + k, rows, rank, width, begin, end, grad + k * width);
  for (; k < rank; ++k) OuterSome<1>(x, low + k, rows, rank, width, begin, end, grad + k * width);
}

// Blocks of 8 elements, kLanes blocks at a time: every round is one pass over the lanes.
ARGOSY_INLINE void DropoutOfTokenRows(uint32_t threshold, float scale, const DropoutKey& key, int64_t width, float* x) {
  constexpr int64_t kElements = 8;
  for (int64_t begin = 0; begin < width; begin += kLanes * kElements) {
    uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      c0[lane] = static_cast<uint32_t>(begin / kElements + lane);
      c1[lane] = key.token;
      c2[lane] = key.row;
      c3[lane] = key.module;
    }
    uint32_t k0 = static_cast<uint32_t>(key.seed) ^ key.attempt, k1 = static_cast<uint32_t>(key.seed >> 32) + key.attempt;
    for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const uint64_t a = 0xd2511f53ull * c0[lane], b = 0xcd9e8d57ull * c2[lane];
        const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1[lane] ^ k0, n2 = static_cast<uint32_t>(a >> 32) ^ c3[lane] ^ k1;
        c1[lane] = static_cast<uint32_t>(b);
        c3[lane] = static_cast<uint32_t>(a);
        c0[lane] = n0;
        c2[lane] = n2;
      }
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t words[4] = {c0[lane], c1[lane], c2[lane], c3[lane]};
      for (int64_t i = 0; i < kElements; ++i) {
        const int64_t at = begin + lane * kElements + i;
        if (at >= width) return;
        const uint32_t bits = i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
        x[at] = bits < threshold ? 0.0f : x[at] * scale;
      }
    }
  }
}

template <class T>
ARGOSY_INLINE double CrossEntropyRows(T* logits, int64_t vocabulary, int64_t target, float scale) {
  float most = MaxOf(logits, vocabulary);
  float sum = SumOf(vocabulary, [=](int64_t i) { return ExpInline(Load(logits[i]) - most); });
  double nll = std::log(static_cast<double>(sum)) + static_cast<double>(most) - static_cast<double>(Load(logits[target]));
  if (scale == 0) return nll;
  float factor = scale / sum, of_target = (ExpInline(Load(logits[target]) - most) / sum - 1.0f) * scale;
  for (int64_t i = 0; i < vocabulary; ++i) Store(logits[i], ExpInline(Load(logits[i]) - most) * factor);
  Store(logits[target], of_target);
  return nll;
}

}  // namespace

#define ARGOSY_BOTH(T)                                                                                                                       \
  ARGOSY_KERNEL(void, RmsNorm, (const T* x, const T* weight, int64_t rows, int64_t width, float eps, T* y, float* inverse),                  \
                (x, weight, rows, width, eps, y, inverse))                                                                                   \
  ARGOSY_KERNEL(void, RmsNormBackward,                                                                                                       \
                (const T* x, const T* weight, const float* inverse, const T* grad_y, const T* add, int64_t rows, int64_t width, T* grad_x,   \
                 float* grad_weight),                                                                                                        \
                (x, weight, inverse, grad_y, add, rows, width, grad_x, grad_weight))                                                         \
  ARGOSY_KERNEL(void, Rotate,                                                                                                                \
                (const T* x, int64_t x_stride, const T* cos, const T* sin, int64_t heads, int64_t head_dim, float direction, T* y,           \
                 int64_t y_stride),                                                                                                          \
                (x, x_stride, cos, sin, heads, head_dim, direction, y, y_stride))                                                            \
  ARGOSY_KERNEL(void, SwiGlu, (const T* gate, const T* up, int64_t n, T* out), (gate, up, n, out))                                           \
  ARGOSY_KERNEL(void, SwiGluBackward, (T * gate, T * up, const T* grad_out, int64_t n, T* out), (gate, up, grad_out, n, out))                \
  ARGOSY_KERNEL(void, LowRankReduce, (const T* x, const float* a, int64_t rank, int64_t width, float* low), (x, a, rank, width, low))        \
  ARGOSY_KERNEL(void, LowRankExpand, (const float* low, const float* a, int64_t rank, int64_t width, T* y), (low, a, rank, width, y))        \
  ARGOSY_KERNEL(void, LowRankOuter,                                                                                                          \
                (const T* x, const float* low, int64_t rows, int64_t rank, int64_t width, int64_t begin, int64_t end, float* grad),          \
                (x, low, rows, rank, width, begin, end, grad))                                                                               \
  ARGOSY_KERNEL(double, CrossEntropy, (T * logits, int64_t vocabulary, int64_t target, float scale), (logits, vocabulary, target, scale))
ARGOSY_BOTH(float)
ARGOSY_BOTH(Bf16)
#undef ARGOSY_BOTH

ARGOSY_KERNEL(float, Softmax, (float* scores, int64_t n, int64_t begin, int64_t end, float scale), (scores, n, begin, end, scale))
ARGOSY_KERNEL(void, SoftmaxBackward,
              (float* scores, int64_t n, int64_t begin, int64_t end, float scale, float log_sum, float* grad_weights),
              (scores, n, begin, end, scale, log_sum, grad_weights))

ARGOSY_KERNEL(void, DropoutOfToken, (uint32_t threshold, float scale, const DropoutKey& key, int64_t width, float* x), (threshold, scale, key, width, x))

void Dropout(double share, const DropoutKey& key, int64_t width, float* x) {
  const auto threshold = static_cast<uint32_t>(std::min(std::lround(share * 65536), 65535l));
  DropoutOfToken(threshold, static_cast<float>(65536.0 / (65536.0 - threshold)), key, width, x);
}

float Exp(float x) { return ExpInline(x); }

}  // namespace argosy::train::rows
