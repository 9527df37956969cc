#include "train/model/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "runtime/base/status.h"
#include "train/model/kernel_sizes.h"
#include "train/model/row_kernels.h"

namespace argosy::train::kernels {
namespace {

constexpr int64_t kGrain = 1 << 15;          // elements of a part that is worth a thread
constexpr int64_t kRowsOfPart = 64;          // rows whose gradients of a weight are summed before the others'

const float* Data(const at::Tensor& x, float) { return x.const_data_ptr<float>(); }
const rows::Bf16* Data(const at::Tensor& x, rows::Bf16) { return reinterpret_cast<const rows::Bf16*>(x.const_data_ptr()); }
float* MutableData(const at::Tensor& x, float) { return x.data_ptr<float>(); }
rows::Bf16* MutableData(const at::Tensor& x, rows::Bf16) { return reinterpret_cast<rows::Bf16*>(x.data_ptr()); }

// Calls work(T{}) with the tensor's element type.
template <class F>
void OfType(const at::Tensor& x, F work) {
  if (x.scalar_type() == at::kFloat) work(float{});
  else if (x.scalar_type() == at::kBFloat16) work(rows::Bf16{});
  else ARGOSY_CHECK(false, "kernels of fp32 and bf16 got {}", c10::toString(x.scalar_type()));
}

void ForRows(int64_t count, int64_t width, const std::function<void(int64_t, int64_t)>& work) {
  at::parallel_for(0, count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width)), work);
}

// The block's queries of all heads that share a key head, and the keys that some of them see.
struct Block {
  int64_t begin, queries, first_key, keys;
};
std::vector<Block> Blocks(const Visible& visible, int64_t tokens) {
  std::vector<Block> blocks;
  for (int64_t begin = 0; begin < tokens; begin += kQueriesOfBlock) {
    int64_t queries = std::min(kQueriesOfBlock, tokens - begin), first = tokens, end = 0;
    for (int64_t row = 0; row < visible.rows; ++row) {
      for (int64_t t = begin; t < begin + queries; ++t) {
        bool none = visible.first[row * tokens + t] == visible.end[row * tokens + t];
        first = none ? 0 : std::min<int64_t>(first, visible.first[row * tokens + t]);
        end = none ? tokens : std::max<int64_t>(end, visible.end[row * tokens + t]);
      }
    }
    blocks.push_back({begin, queries, first, end - first});
  }
  return blocks;
}

// One block of one call: its tensors as batches of matrices, a matrix for each key head.
struct Shape {
  int64_t B, N, K, T, H, times;
  Shape(const at::Tensor& q, const at::Tensor& k) : B(q.size(0)), N(q.size(1)), K(k.size(1)), T(q.size(2)), H(q.size(3)), times(N / K) {}

  at::Tensor Queries(const at::Tensor& x_BNTH, const Block& block) const {
    return x_BNTH.view({B, K, times, T, H}).narrow(3, block.begin, block.queries).reshape({B * K, times * block.queries, H});
  }
  at::Tensor QueriesOf(const at::Tensor& x_BTNH, const Block& block) const { return PlaceOf(x_BTNH, block).reshape({B * K, times * block.queries, H}); }
  at::Tensor PlaceOf(const at::Tensor& x_BTNH, const Block& block) const {
    return x_BTNH.view({B, T, K, times, H}).narrow(1, block.begin, block.queries).permute({0, 2, 3, 1, 4});
  }
  at::Tensor Keys(const at::Tensor& x_BKTH, const Block& block) const { return x_BKTH.view({B * K, T, H}).narrow(1, block.first_key, block.keys); }

  // Calls row(index into scores' rows, index into [B, N, T], first key, end key within the block's keys).
  template <class F>
  void EachRow(const Visible& visible, const Block& block, F row) const {
    const int64_t of_head = times * block.queries;
    ForRows(B * K * of_head, 4 * block.keys, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t b = i / of_head / K, head = i / of_head % K * times + i % of_head / block.queries, t = block.begin + i % block.queries;
        int64_t at = (visible.rows == 1 ? 0 : b) * T + t;
        row(i, (b * N + head) * T + t, visible.first[at] - block.first_key, visible.end[at] - block.first_key);
      }
    });
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& inverse) {
  const int64_t width = x.size(-1), count = width == 0 ? 0 : x.numel() / width;
  at::Tensor y = at::empty_like(x);
  inverse = at::empty({count}, at::kFloat);
  OfType(x, [&](auto type) {
    auto *in = Data(x, type), *w = Data(weight, type);
    auto* out = MutableData(y, type);
    float* scales = inverse.data_ptr<float>();
    ForRows(count, width, [&](int64_t begin, int64_t end) {
      rows::RmsNorm(in + begin * width, w, end - begin, width, static_cast<float>(eps), out + begin * width, scales + begin);
    });
  });
  return y;
}

at::Tensor RmsNormBackward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse, const at::Tensor& grad_y, const at::Tensor& add,
                           at::Tensor& grad_weight) {
  const int64_t width = x.size(-1), count = width == 0 ? 0 : x.numel() / width;
  const int64_t parts = (count + kRowsOfPart - 1) / kRowsOfPart;
  at::Tensor grad_x = at::empty_like(x), sums = at::zeros({parts, width}, at::kFloat);
  OfType(x, [&](auto type) {
    auto *in = Data(x, type), *w = Data(weight, type), *g = Data(grad_y, type), *more = add.defined() ? Data(add, type) : nullptr;
    auto* out = MutableData(grad_x, type);
    const float* scales = inverse.const_data_ptr<float>();
    float* sum = sums.data_ptr<float>();
    ForRows(parts, kRowsOfPart * width, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t row = part * kRowsOfPart, at = row * width;
        rows::RmsNormBackward(in + at, w, scales + row, g + at, more == nullptr ? nullptr : more + at, std::min(kRowsOfPart, count - row), width, out + at,
                              sum + part * width);
      }
    });
  });
  grad_weight = sums.sum(0);
  return grad_x;
}

namespace {

at::Tensor RotateTo(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t B, int64_t T, int64_t N, float direction, at::Tensor y) {
  const int64_t H = x.size(3);
  const bool by_token = direction > 0;   // x is [B, T, N, H], y is [B, N, T, H]; else the other way round
  OfType(x, [&](auto type) {
    auto *in = Data(x, type), *c = Data(cos, type), *s = Data(sin, type);
    auto* out = MutableData(y, type);
    ForRows(B * T, N * H, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / T, t = i % T, angle = ((cos.size(0) == 1 ? 0 : b) * T + t) * H;
        const int64_t tokens_first = i * N * H, heads_first = (b * N * T + t) * H;
        rows::Rotate(in + (by_token ? tokens_first : heads_first), by_token ? H : T * H, c + angle, s + angle, N, H, direction,
                     out + (by_token ? heads_first : tokens_first), by_token ? T * H : H);
      }
    });
  });
  return y;
}

}  // namespace

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t B = x.size(0), T = x.size(1), N = x.size(2);
  return RotateTo(x, cos, sin, B, T, N, 1.0f, at::empty({B, N, T, x.size(3)}, x.options()));
}

at::Tensor RotateBackward(const at::Tensor& grad, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t B = grad.size(0), N = grad.size(1), T = grad.size(2);
  return RotateTo(grad, cos, sin, B, T, N, -1.0f, at::empty({B, T, N, grad.size(3)}, grad.options()));
}

at::Tensor Attention(const at::Tensor& given_q, const at::Tensor& given_k, const at::Tensor& given_v, const Visible& visible, double scale,
                     at::Tensor& log_sums) {
  const at::Tensor q = given_q.to(at::kFloat), k = given_k.to(at::kFloat), v = given_v.to(at::kFloat);
  const Shape s(q, k);
  at::Tensor out = at::empty({s.B, s.T, s.N, s.H}, given_q.options());
  log_sums = at::empty({s.B, s.N, s.T}, at::kFloat);
  float* logs = log_sums.data_ptr<float>();
  for (const Block& block : Blocks(visible, s.T)) {
    at::Tensor weights = at::bmm(s.Queries(q, block), s.Keys(k, block).transpose(1, 2));
    float* scores = weights.data_ptr<float>();
    s.EachRow(visible, block, [&](int64_t row, int64_t at, int64_t first, int64_t end) {
      logs[at] = rows::Softmax(scores + row * block.keys, block.keys, first, end, static_cast<float>(scale));
    });
    s.PlaceOf(out, block).copy_(at::bmm(weights, s.Keys(v, block)).view({s.B, s.K, s.times, block.queries, s.H}));
  }
  return out;
}

AttentionGradients AttentionBackward(const at::Tensor& given_q, const at::Tensor& given_k, const at::Tensor& given_v, const Visible& visible, double scale,
                                     const at::Tensor& log_sums, const at::Tensor& given_grad_out) {
  const at::Tensor q = given_q.to(at::kFloat), k = given_k.to(at::kFloat), v = given_v.to(at::kFloat), grad_out = given_grad_out.to(at::kFloat);
  const Shape s(q, k);
  AttentionGradients grads{.q_BNTH = at::empty_like(given_q)};
  at::Tensor grad_k = at::zeros({s.B * s.K, s.T, s.H}, at::kFloat), grad_v = at::zeros_like(grad_k);
  const float* logs = log_sums.const_data_ptr<float>();
  for (const Block& block : Blocks(visible, s.T)) {
    at::Tensor queries = s.Queries(q, block), keys = s.Keys(k, block), grad = s.QueriesOf(grad_out, block);
    at::Tensor weights = at::bmm(queries, keys.transpose(1, 2)), grad_scores = at::bmm(grad, s.Keys(v, block).transpose(1, 2));
    float *w = weights.data_ptr<float>(), *d = grad_scores.data_ptr<float>();
    s.EachRow(visible, block, [&](int64_t row, int64_t at, int64_t first, int64_t end) {
      rows::SoftmaxBackward(w + row * block.keys, block.keys, first, end, static_cast<float>(scale), logs[at], d + row * block.keys);
    });
    s.Keys(grad_v, block).add_(at::bmm(weights.transpose(1, 2), grad));
    grads.q_BNTH.view({s.B, s.K, s.times, s.T, s.H}).narrow(3, block.begin, block.queries)
        .copy_(at::bmm(grad_scores, keys).view({s.B, s.K, s.times, block.queries, s.H}));
    // Head by head: the shorter the sums, the less of a key's gradient is lost, whose terms nearly cancel.
    const int64_t heads = s.B * s.N;
    s.Keys(grad_k, block).add_(at::bmm(grad_scores.view({heads, block.queries, block.keys}).transpose(1, 2), queries.view({heads, block.queries, s.H}))
                                   .view({s.B * s.K, s.times, block.keys, s.H}).sum(1));
  }
  grads.k_BKTH = grad_k.to(given_q.scalar_type()).view({s.B, s.K, s.T, s.H});
  grads.v_BKTH = grad_v.to(given_q.scalar_type()).view({s.B, s.K, s.T, s.H});
  return grads;
}

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor out = at::empty_like(gate);
  OfType(gate, [&](auto type) {
    auto *g = Data(gate, type), *u = Data(up, type);
    auto* o = MutableData(out, type);
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) { rows::SwiGlu(g + begin, u + begin, end - begin, o + begin); });
  });
  return out;
}

at::Tensor SwiGluBackward(at::Tensor& gate, at::Tensor& up, const at::Tensor& grad_out) {
  at::Tensor out = at::empty_like(gate);
  OfType(gate, [&](auto type) {
    auto *g = MutableData(gate, type), *u = MutableData(up, type), *o = MutableData(out, type);
    auto* d = Data(grad_out, type);
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      rows::SwiGluBackward(g + begin, u + begin, d + begin, end - begin, o + begin);
    });
  });
  return out;
}

double CrossEntropy(at::Tensor& logits, const at::Tensor& targets_n, double scale) {
  const int64_t tokens = logits.size(0), vocabulary = logits.size(1);
  std::vector<double> nll(static_cast<size_t>(tokens));
  const int64_t* targets = targets_n.const_data_ptr<int64_t>();
  OfType(logits, [&](auto type) {
    auto* data = MutableData(logits, type);
    ForRows(tokens, 4 * vocabulary, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) nll[i] = rows::CrossEntropy(data + i * vocabulary, vocabulary, targets[i], static_cast<float>(scale));
    });
  });
  double sum = 0;
  for (double one : nll) sum += one;
  return sum;
}

double LinearCrossEntropy(const at::Tensor& hidden_nD, const at::Tensor& matrix_VD, const at::Tensor& targets_n,
                          LinearCrossEntropyGradients* gradients, const Adapter& adapter) {
  const int64_t tokens = hidden_nD.size(0), vocabulary = matrix_VD.size(0);
  const int64_t chunk_max = std::max<int64_t>(64, kLogitsBytesMax / (vocabulary * hidden_nD.element_size()));
  const int64_t chunks = (tokens + chunk_max - 1) / chunk_max;
  at::Tensor sum;
  if (gradients != nullptr) gradients->hidden_nD = at::empty_like(hidden_nD);
  if (gradients != nullptr && gradients->matrix_VD.defined()) {
    const bool wide = chunks > 1 && gradients->matrix_VD.scalar_type() != at::kFloat;
    sum = wide ? at::zeros(matrix_VD.sizes(), at::kFloat) : gradients->matrix_VD;
  }
  double nll = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * tokens / chunks, n = (chunk + 1) * tokens / chunks - begin;
    at::Tensor hidden = hidden_nD.narrow(0, begin, n), logits = at::mm(hidden, matrix_VD.t());
    if (adapter) AddAdapter(logits, hidden, adapter, begin);
    nll += CrossEntropy(logits, targets_n.narrow(0, begin, n), gradients == nullptr ? 0.0 : gradients->scale);
    if (gradients == nullptr) continue;
    if (sum.defined()) AddProduct(sum, logits, hidden);
    at::Tensor grad_hidden = gradients->hidden_nD.narrow(0, begin, n);
    at::mm_out(grad_hidden, logits, matrix_VD);
    if (adapter) AdapterBackward(logits, hidden, adapter, gradients->a_RD, gradients->b_VR, grad_hidden, begin);
  }
  if (sum.defined() && !sum.is_same(gradients->matrix_VD)) gradients->matrix_VD.add_(sum.to(gradients->matrix_VD.scalar_type()));
  return nll;
}

namespace {

bool Drops(const Adapter& adapter) { return adapter.dropout != nullptr && adapter.dropout->share > 0; }

// Dropout of one token's numbers, the i-th of the call's.
void Drop(const Adapter& adapter, int64_t i, int64_t width, float* x) {
  const Dropout& dropout = *adapter.dropout;
  const int64_t place = dropout.places_n.defined() ? dropout.places_n.const_data_ptr<int64_t>()[i] : i;
  const auto row = static_cast<uint32_t>(place / dropout.tokens + dropout.first_row), token = static_cast<uint32_t>(place % dropout.tokens);
  rows::Dropout(dropout.share, {dropout.seed, dropout.attempt, row, token, adapter.module}, width, x);
}

float AsFloat(float x) { return x; }
float AsFloat(rows::Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

constexpr int64_t kColumnsOfPart = 64;   // a cache line of bf16 and more

// grad_RW += low_nR' x_nW.
template <class T>
void AddOuter(const T* x, const at::Tensor& low_nR, int64_t n, int64_t width, const at::Tensor& grad_RW) {
  const float* low = low_nR.const_data_ptr<float>();
  float* grad = grad_RW.data_ptr<float>();
  const int64_t rank = low_nR.size(1), parts = (width + kColumnsOfPart - 1) / kColumnsOfPart;
  at::parallel_for(0, parts, std::max<int64_t>(1, kGrain / (n * rank)), [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      rows::LowRankOuter(x, low, n, rank, width, part * kColumnsOfPart, std::min(width, (part + 1) * kColumnsOfPart), grad);
    }
  });
}

}  // namespace

void AddAdapter(const at::Tensor& y_nO, const at::Tensor& x_nI, const Adapter& adapter, int64_t first) {
  const int64_t n = x_nI.size(0), I = x_nI.size(1), O = y_nO.size(1), R = adapter.a_RI.size(0);
  const at::Tensor x_held = x_nI.contiguous(), b_held = adapter.b_OR.t().contiguous();
  const float *a = adapter.a_RI.const_data_ptr<float>(), *b = b_held.const_data_ptr<float>();
  OfType(y_nO, [&](auto type) {
    const auto* x = Data(x_held, type);
    auto* y = MutableData(y_nO, type);
    ForRows(n, R * (I + O), [&](int64_t begin, int64_t end) {
      std::vector<float> low(static_cast<size_t>(R)), dropped;
      for (int64_t i = begin; i < end; ++i) {
        if (Drops(adapter)) {
          dropped.resize(static_cast<size_t>(I));
          std::transform(x + i * I, x + (i + 1) * I, dropped.begin(), [](auto value) { return AsFloat(value); });
          Drop(adapter, first + i, I, dropped.data());
          rows::LowRankReduce(dropped.data(), a, R, I, low.data());
        } else {
          rows::LowRankReduce(x + i * I, a, R, I, low.data());
        }
        for (float& value : low) value *= adapter.scale;
        rows::LowRankExpand(low.data(), b, R, O, y + i * O);
      }
    });
  });
}

void AdapterBackward(const at::Tensor& grad_y_nO, const at::Tensor& x_nI, const Adapter& adapter, const at::Tensor& grad_a_RI, const at::Tensor& grad_b_OR,
                     const at::Tensor& grad_x_nI, int64_t first) {
  const int64_t n = x_nI.size(0), I = x_nI.size(1), O = grad_y_nO.size(1), R = adapter.a_RI.size(0);
  const bool drops = Drops(adapter);
  const at::Tensor x_held = x_nI.contiguous(), grad_y_held = grad_y_nO.contiguous(), b_held = adapter.b_OR.t().contiguous();
  const float *a = adapter.a_RI.const_data_ptr<float>(), *b = b_held.const_data_ptr<float>();
  at::Tensor grad_b = at::zeros({R, O}, at::kFloat);
  // In parts of so many tokens, whose dropped inputs are kept until both sums have them.
  const int64_t part_max = std::min(n, kAdapterRows);
  at::Tensor low_held = at::empty({part_max, R}, at::kFloat), grad_low_held = at::empty({part_max, R}, at::kFloat), dropped_held;
  if (drops) dropped_held = at::empty({part_max, I}, at::kFloat);
  float *low = low_held.data_ptr<float>(), *grad_low = grad_low_held.data_ptr<float>(), *dropped = drops ? dropped_held.data_ptr<float>() : nullptr;
  OfType(x_nI, [&](auto type) {
    for (int64_t at = 0; at < n; at += part_max) {
      const int64_t count = std::min(part_max, n - at);
      const auto *x = Data(x_held, type) + at * I, *grad_y = Data(grad_y_held, type) + at * O;
      auto* grad_x = MutableData(grad_x_nI, type) + at * I;
      ForRows(count, 2 * R * (I + O), [&](int64_t begin, int64_t end) {
        std::vector<float> of_x(drops ? static_cast<size_t>(I) : 0);
        for (int64_t i = begin; i < end; ++i) {
          rows::LowRankReduce(grad_y + i * O, b, R, O, grad_low + i * R);
          for (int64_t k = 0; k < R; ++k) grad_low[i * R + k] *= adapter.scale;
          if (!drops) {
            rows::LowRankReduce(x + i * I, a, R, I, low + i * R);
            rows::LowRankExpand(grad_low + i * R, a, R, I, grad_x + i * I);
          } else {
            std::transform(x + i * I, x + (i + 1) * I, dropped + i * I, [](auto value) { return AsFloat(value); });
            Drop(adapter, first + at + i, I, dropped + i * I);
            rows::LowRankReduce(dropped + i * I, a, R, I, low + i * R);
            std::fill(of_x.begin(), of_x.end(), 0.0f);
            rows::LowRankExpand(grad_low + i * R, a, R, I, of_x.data());
            Drop(adapter, first + at + i, I, of_x.data());
            constexpr float kOne = 1.0f;
            rows::LowRankExpand(&kOne, of_x.data(), 1, I, grad_x + i * I);
          }
          for (int64_t k = 0; k < R; ++k) low[i * R + k] *= adapter.scale;
        }
      });
      if (drops) AddOuter(static_cast<const float*>(dropped), grad_low_held, count, I, grad_a_RI);
      else AddOuter(x, grad_low_held, count, I, grad_a_RI);
      AddOuter(grad_y, low_held, count, O, grad_b);
    }
  });
  grad_b_OR.add_(grad_b.t());
}

void AddProduct(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b) {
  if (grad.scalar_type() == a.scalar_type()) {
    grad.addmm_(a.t(), b);
    return;
  }
  // Some rows at a time: the product stays in the cache until it has been added.
  for (int64_t begin = 0; begin < grad.size(0); begin += kProductRows) {
    const int64_t rows = std::min(kProductRows, grad.size(0) - begin);
    grad.narrow(0, begin, rows).add_(at::mm(a.narrow(1, begin, rows).t(), b));
  }
}

}  // namespace argosy::train::kernels
