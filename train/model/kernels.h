#pragma once

// The parts of a decoder layer that are no matrix products, forward and backward, on whole tensors: row_kernels.h over torch's threads. Sums
// are taken in an order that the shapes alone determine. Private to the torch targets.
//
// Shapes: B rows, T tokens a row, N query heads, K key heads, H head_dim, D any width. Tensors are fp32 or bf16, contiguous where it is not
// said otherwise; in one call all have one type.
//
// Thread:   any; work is split among the calling thread's torch threads.
// Failure:  none: other types and shapes are a caller's bug.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace argosy::train::kernels {

// `inverse` gets one fp32 number a row of x's last dimension.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& inverse);
// The gradient of x, added to `add` when that is defined. `grad_weight` gets the weight's, in fp32.
at::Tensor RmsNormBackward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse, const at::Tensor& grad_y, const at::Tensor& add,
                           at::Tensor& grad_weight);

// Rotary embedding, together with the change of layout that attention needs. `cos` and `sin` are [b, 1, T, H], b = 1 or B.
at::Tensor Rotate(const at::Tensor& x_BTNH, const at::Tensor& cos, const at::Tensor& sin);               // -> [B, N, T, H]
at::Tensor RotateBackward(const at::Tensor& grad_BNTH, const at::Tensor& cos, const at::Tensor& sin);    // -> [B, T, N, H]

// Which keys each query sees: [first, end) of its row; a query with first == end sees none, and weighs all tokens of the row alike, as
// transformers' eager attention does.
struct Visible {
  int64_t rows = 1;                 // 1: the same for all rows of the batch
  std::vector<int32_t> first, end;  // [rows, T]
};

// Softmax attention, computed in fp32 whatever the type (scores rounded to bf16 cost a tiny model half the precision of its gradients), in blocks of 128
// queries, which meet only the keys that some query of the block sees. Query heads n * N/K, ... share key
// head n. `log_sums` is [B, N, T], fp32: with it the backward computes a block's weights again instead of keeping T * T of them.
at::Tensor Attention(const at::Tensor& q_BNTH, const at::Tensor& k_BKTH, const at::Tensor& v_BKTH, const Visible& visible, double scale,
                     at::Tensor& log_sums);      // -> [B, T, N, H]
struct AttentionGradients {
  at::Tensor q_BNTH, k_BKTH, v_BKTH;
};
AttentionGradients AttentionBackward(const at::Tensor& q_BNTH, const at::Tensor& k_BKTH, const at::Tensor& v_BKTH, const Visible& visible, double scale,
                                     const at::Tensor& log_sums, const at::Tensor& grad_out_BTNH);

// silu(gate) * up.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);
// `gate` and `up` become their gradients; returns silu(gate) * up again.
at::Tensor SwiGluBackward(at::Tensor& gate, at::Tensor& up, const at::Tensor& grad_out);

// Inverted dropout, whose numbers are Philox's for (seed, attempt, row, token, module, element): the same on any number of ranks.
struct Dropout {
  double share = 0;             // of elements that become 0; 0: none
  uint64_t seed = 0;
  uint32_t attempt = 0;         // counts the optimizer steps that were tried
  uint32_t first_row = 0;       // of the batch, among all rows of the step
  int64_t tokens = 1;           // of a row
  at::Tensor places_n;          // int64: which tokens of the batch these are; undefined: all, in order
};

// A low-rank addition to a product: y += scale * dropout(x) a' b', computed in fp32 and rounded once. Undefined `a_RI`: none.
struct Adapter {
  at::Tensor a_RI, b_OR;        // fp32
  float scale = 1;
  uint32_t module = 0;          // of Dropout
  const Dropout* dropout = nullptr;
  explicit operator bool() const { return a_RI.defined(); }
};
// `first`: which of the dropout's tokens the first row of x is.
void AddAdapter(const at::Tensor& y_nO, const at::Tensor& x_nI, const Adapter& adapter, int64_t first = 0);
// Adds to the gradients of a and b, and to `grad_x`.
void AdapterBackward(const at::Tensor& grad_y_nO, const at::Tensor& x_nI, const Adapter& adapter, const at::Tensor& grad_a_RI, const at::Tensor& grad_b_OR,
                     const at::Tensor& grad_x_nI, int64_t first = 0);

// The sum over tokens of -log softmax(hidden matrix')[target], by chunks of tokens: logits [n, V] never exist whole. With `gradients`, each
// chunk's backward follows its forward.
struct LinearCrossEntropyGradients {
  double scale = 1;       // d(objective) / d(sum)
  at::Tensor matrix_VD;   // added to; fp32 gets the chunks' sum as it is, another type rounds it once; undefined: not wanted
  at::Tensor a_RD, b_VR;  // of the adapter; added to
  at::Tensor hidden_nD;   // out
};
double LinearCrossEntropy(const at::Tensor& hidden_nD, const at::Tensor& matrix_VD, const at::Tensor& targets_n,
                          LinearCrossEntropyGradients* gradients = nullptr, const Adapter& adapter = {});
// The same from logits [n, V], which become their gradient times `scale`, unless that is 0.
double CrossEntropy(at::Tensor& logits, const at::Tensor& targets_n, double scale);

// grad += a' b, whatever the type of grad: products are rounded to the type of a and b.
void AddProduct(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b);

}  // namespace argosy::train::kernels
