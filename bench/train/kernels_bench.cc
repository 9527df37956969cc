// The parts of a training step of one layer, and of the head, for the shapes of SmolLM2-135M: kernels_bench [ROWS] [CONTEXT] [THREADS] [ROUNDS].
// Each stands beside its roofline: for what moves memory the bytes that must move at the speed of a copy in the same run, for products their
// operations at the speed of the best bf16 product of 2048 of the same run.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "train/model/kernels.h"

namespace {

using argosy::train::kernels::Visible;
namespace kernels = argosy::train::kernels;

double Seconds(const std::function<void()>& work, int rounds) {
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  auto argument = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const int64_t B = argument(1, 2), T = argument(2, 512), threads = argument(3, 2), rounds = argument(4, 20);
  if (B < 1 || T < 1 || threads < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: kernels_bench [ROWS] [CONTEXT] [THREADS] [ROUNDS], all positive\n");
    return 2;
  }
  at::set_num_threads(static_cast<int>(threads));
  at::NoGradGuard no_grad;
  const int64_t N = 9, K = 3, H = 64, D = 576, I = 1536, V = 49152, n = B * T;
  auto random = [](at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); };

  at::Tensor a = random({2048, 2048}), b = random({2048, 2048}), from = at::randn({1 << 24}), to = at::empty_like(from);
  const double flops = 2 * 2048.0 * 2048 * 2048 / Seconds([&] { at::mm(a, b); }, 5);
  const double bandwidth = 2.0 * 4 * (1 << 24) / Seconds([&] { to.copy_(from); }, 5);
  std::printf("%lld rows of %lld tokens, bf16, %lld threads; products %.0f GFLOP/s, copies %.1f GB/s\n", static_cast<long long>(B), static_cast<long long>(T),
              static_cast<long long>(threads), flops / 1e9, bandwidth / 1e9);
  std::printf("%-34s %9s %9s %9s\n", "", "ms", "roofline", "torch ms");

  auto row = [&](const char* name, double operations, double bytes, const std::function<void()>& ours, const std::function<void()>& theirs) {
    double mine = Seconds(ours, static_cast<int>(rounds)), other = theirs ? Seconds(theirs, static_cast<int>(rounds)) : 0;
    std::printf("%-34s %9.3f %9.3f", name, 1e3 * mine, 1e3 * std::max(operations / flops, bytes / bandwidth));
    if (theirs) std::printf(" %9.3f", 1e3 * other);
    std::printf("\n");
  };
  auto recorded = [](std::vector<at::Tensor> inputs, const at::Tensor& grad, const std::function<at::Tensor(std::vector<at::Tensor>&)>& forward) {
    return [=] {
      at::AutoGradMode recording(true);
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
      forward(leaves).backward(grad);
    };
  };

  at::Tensor x = random({B, T, D}), w = random({D}), g = random({B, T, D}), inverse, grad_w;
  auto norm = [](std::vector<at::Tensor>& in) {
    at::Tensor wide = in[0].to(at::kFloat);
    return (wide * at::rsqrt(wide.square().mean(-1, true) + 1e-5)).to(at::kBFloat16) * in[1];
  };
  row("RMSNorm forward + backward", 0, 2.0 * n * D * 5, [&] {
    kernels::RmsNorm(x, w, 1e-5, inverse);
    kernels::RmsNormBackward(x, w, inverse, g, {}, grad_w);
  }, recorded({x, w}, g, norm));

  at::Tensor q = random({B, T, N, H}), k = random({B, T, K, H}), cos = random({1, 1, T, H}), sin = random({1, 1, T, H});
  auto rotate = [&](std::vector<at::Tensor>& in) {
    at::Tensor turned = in[0].transpose(1, 2), half = at::cat({turned.narrow(-1, H / 2, H / 2).neg(), turned.narrow(-1, 0, H / 2)}, -1);
    return turned * cos + half * sin;
  };
  at::Tensor rotated_q = kernels::Rotate(q, cos, sin), rotated_k = kernels::Rotate(k, cos, sin), v = random({B, K, T, H});
  row("rotary of queries, both ways", 0, 2.0 * n * N * H * 4, [&] { kernels::RotateBackward(kernels::Rotate(q, cos, sin), cos, sin); },
      recorded({q}, rotated_q, rotate));

  Visible causal;
  for (int64_t t = 0; t < T; ++t) {
    causal.first.push_back(0);
    causal.end.push_back(static_cast<int32_t>(t + 1));
  }
  at::Tensor logs, grad_out = random({B, T, N, H});
  // Two products forward, five backward, of the half that is seen.
  row("attention forward + backward", 7 * 2.0 * B * N * T * T / 2 * H, 0, [&] {
    kernels::Attention(rotated_q, rotated_k, v, causal, 0.125, logs);
    kernels::AttentionBackward(rotated_q, rotated_k, v, causal, 0.125, logs, grad_out);
  }, recorded({rotated_q, rotated_k, v}, grad_out.transpose(1, 2), [&](std::vector<at::Tensor>& in) {
    auto repeat = [&](const at::Tensor& one) { return one.unsqueeze(2).expand({B, K, N / K, T, H}).reshape({B, N, T, H}); };
    return at::scaled_dot_product_attention(in[0], repeat(in[1]), repeat(in[2]), {}, 0.0, true, 0.125);
  }));

  at::Tensor gate = random({n, I}), up = random({n, I}), grad_gated = random({n, I});
  row("SwiGLU forward + backward", 0, 2.0 * n * I * 9, [&] {
    kernels::SwiGlu(gate, up);
    at::Tensor as_gate = gate, as_up = up;   // overwritten: the values do not matter here
    kernels::SwiGluBackward(as_gate, as_up, grad_gated);
    gate.fill_(0.5), up.fill_(0.25);
  }, recorded({gate, up}, grad_gated, [](std::vector<at::Tensor>& in) { return at::silu(in[0]) * in[1]; }));

  at::Tensor matrix = random({V, D}), hidden = random({n, D}), targets = at::randint(V, {n}, at::kLong), grad_matrix = at::zeros({V, D}, at::kFloat);
  row("head and loss, both ways", 3 * 2.0 * n * V * D, 0, [&] {
    kernels::LinearCrossEntropyGradients gradients{.matrix_VD = grad_matrix};
    kernels::LinearCrossEntropy(hidden, matrix, targets, &gradients);
  }, recorded({hidden, matrix}, at::ones({}), [&](std::vector<at::Tensor>& in) {
    return at::cross_entropy_loss(at::mm(in[0], in[1].t()).to(at::kFloat), targets, {}, at::Reduction::Sum);
  }));
  at::Tensor logits = random({256, V});
  row("cross-entropy alone, of 256 tokens", 0, 2.0 * 256 * V * 3, [&] { kernels::CrossEntropy(logits, targets, 1.0); }, nullptr);

  at::Tensor wq = random({N * H, D}), wg = random({I, D}), wd = random({D, I}), xn = x.view({n, D});
  row("products of a layer, both ways", 3 * 2.0 * n * D * (2 * N * H + 2 * K * H + 3 * I), 0, [&] {
    for (int pass = 0; pass < 3; ++pass) {
      at::mm(xn, wq.t()), at::mm(xn, wq.t());
      at::mm(xn, wq.t().narrow(1, 0, K * H)), at::mm(xn, wq.t().narrow(1, 0, K * H));
      at::mm(xn, wg.t()), at::mm(xn, wg.t()), at::mm(gate, wd.t());
    }
  }, nullptr);
  return 0;
}
