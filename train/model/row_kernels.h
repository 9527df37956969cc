#pragma once

// The loops of a decoder that are no matrix products, over rows of fp32 or bf16 numbers. Free of torch; callers split the rows among threads.
// Numbers are fp32, and bf16 is rounded to nearest even where transformers' layers round it: results then differ from theirs as those differ from run
// to run, and not by more. NaN stays NaN.

#include <cstdint>

namespace argosy::train::rows {

struct Bf16 {
  uint16_t bits;
};

// y = bf16(x * inverse) * weight with inverse = 1 / sqrt(mean(x^2) + eps): the two roundings that transformers has. Rows of `width`.
void RmsNorm(const float* x, const float* weight, int64_t rows, int64_t width, float eps, float* y, float* inverse);
void RmsNorm(const Bf16* x, const Bf16* weight, int64_t rows, int64_t width, float eps, Bf16* y, float* inverse);

// grad_x = add + d(x), where `add` may be null; d(weight) is added to grad_weight. No two of the arrays may overlap.
void RmsNormBackward(const float* x, const float* weight, const float* inverse, const float* grad_y, const float* add, int64_t rows, int64_t width,
                     float* grad_x, float* grad_weight);
void RmsNormBackward(const Bf16* x, const Bf16* weight, const float* inverse, const Bf16* grad_y, const Bf16* add, int64_t rows, int64_t width,
                     Bf16* grad_x, float* grad_weight);

// The rotation of `heads` heads of one token, from x + head * x_stride to y + head * y_stride. `direction` -1 is the inverse, which is
// the backward.
void Rotate(const float* x, int64_t x_stride, const float* cos, const float* sin, int64_t heads, int64_t head_dim, float direction, float* y, int64_t y_stride);
void Rotate(const Bf16* x, int64_t x_stride, const Bf16* cos, const Bf16* sin, int64_t heads, int64_t head_dim, float direction, Bf16* y, int64_t y_stride);

// out = silu(gate) * up.
void SwiGlu(const float* gate, const float* up, int64_t n, float* out);
void SwiGlu(const Bf16* gate, const Bf16* up, int64_t n, Bf16* out);
// `out` again; gate and up become their gradients.
void SwiGluBackward(float* gate, float* up, const float* grad_out, int64_t n, float* out);
void SwiGluBackward(Bf16* gate, Bf16* up, const Bf16* grad_out, int64_t n, Bf16* out);

// One row of attention. scores[0, n) of which [begin, end) are visible become their softmax after `scale`, the others 0; returns the
// logarithm of the sum of exponentials. A row that sees nothing (begin == end) weighs all alike.
float Softmax(float* scores, int64_t n, int64_t begin, int64_t end, float scale);
// The scores become their softmax again, by the logarithm, and grad_weights the gradient of the scores: weights * (grad_weights - their weighted
// mean) * scale.
void SoftmaxBackward(float* scores, int64_t n, int64_t begin, int64_t end, float scale, float log_sum, float* grad_weights);

// One token's cross-entropy, -log softmax(logits)[target]. With a `scale` other than 0 the logits become its gradient times the scale.
double CrossEntropy(float* logits, int64_t vocabulary, int64_t target, float scale);
double CrossEntropy(Bf16* logits, int64_t vocabulary, int64_t target, float scale);

// The three products of a low-rank adapter, whose matrices are `rank` rows of `width` numbers. Of one token: low[k] = x . a[k], and y += low a.
void LowRankReduce(const float* x, const float* a, int64_t rank, int64_t width, float* low);
void LowRankReduce(const Bf16* x, const float* a, int64_t rank, int64_t width, float* low);
void LowRankExpand(const float* low, const float* a, int64_t rank, int64_t width, float* y);
void LowRankExpand(const float* low, const float* a, int64_t rank, int64_t width, Bf16* y);
// Of `rows` tokens, in the columns [begin, end): grad[k] += sum over t of low[t * rank + k] * x[t].
void LowRankOuter(const float* x, const float* low, int64_t rows, int64_t rank, int64_t width, int64_t begin, int64_t end, float* grad);
void LowRankOuter(const Bf16* x, const float* low, int64_t rows, int64_t rank, int64_t width, int64_t begin, int64_t end, float* grad);

// One token's inverted dropout: each of x's elements becomes 0 with probability `share` (of 65,536ths), the others are divided by the probability to
// stay. The numbers are those of Philox4x32-10 (Salmon et al. 2011), 16 bits an element, for this key and the element's place.
struct DropoutKey {
  uint64_t seed;
  uint32_t attempt, row, token, module;
};
void Dropout(double share, const DropoutKey& key, int64_t width, float* x);

// exp to 2 units in the last place, in a form that compilers turn into vector instructions.
float Exp(float x);

}  // namespace argosy::train::rows
