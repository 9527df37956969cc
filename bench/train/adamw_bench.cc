// AdamW on one flat tensor, ours beside torch's fused kernel, alternated in one run: adamw_bench [MILLIONS OF ELEMENTS] [THREADS] [ROUNDS].
// Prints the bytes that each must move a second, and ratios of the best rounds.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "train/optim/adamw.h"

namespace {

using argosy::train::AdamWScalars;
using argosy::train::AdamWSlice;

std::span<float> Floats(const at::Tensor& tensor) { return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())}; }
std::span<uint16_t> Bits(const at::Tensor& tensor) {
  return {static_cast<uint16_t*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
}

double Seconds(const std::function<void()>& work) {
  auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t n = (argc > 1 ? std::atoll(argv[1]) : 32) * 1'000'000;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  if (n <= 0 || threads <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: adamw_bench [MILLIONS OF ELEMENTS] [THREADS] [ROUNDS], all positive\n");
    return 2;
  }
  at::set_num_threads(threads);
  at::NoGradGuard no_grad;
  at::Tensor p = at::randn({n}), m = at::zeros({n}), v = at::zeros({n}), g = at::randn({n});
  at::Tensor p16 = p.to(at::kBFloat16), low = at::zeros({n}, at::kShort), cast = at::empty({n}, at::kBFloat16);
  at::Tensor step = at::ones({}, at::kFloat);

  auto parallel = [&](const std::function<void(int64_t, int64_t)>& part) { at::parallel_for(0, n, 1 << 15, part); };
  auto ours = [&](bool bf16) {
    AdamWScalars scalars = argosy::train::ScalarsFor({}, 3, 1e-3, 0.01, 1.0);
    parallel([&](int64_t begin, int64_t end) {
      size_t count = end - begin;
      AdamWSlice slice{Floats(m).subspan(begin, count), Floats(v).subspan(begin, count), Floats(g).subspan(begin, count)};
      if (bf16) AdamWStepBf16(Bits(p16).subspan(begin, count), Bits(low).subspan(begin, count), slice, scalars);
      else AdamWStepF32(Floats(p).subspan(begin, count), slice, scalars);
    });
  };
  at::Tensor g16 = g.to(at::kBFloat16), m16 = at::zeros({n}, at::kBFloat16), v16 = at::zeros({n}, at::kBFloat16);
  auto narrow = [&](bool moments) {
    AdamWScalars scalars = argosy::train::ScalarsFor({}, 3, 1e-3, 0.01, 1.0);
    parallel([&](int64_t begin, int64_t end) {
      size_t count = end - begin;
      AdamWSlice slice{.gradient_bf16 = Bits(g16).subspan(begin, count), .first = static_cast<uint32_t>(begin), .key = 3};
      if (moments) {
        slice.moment1_bf16 = Bits(m16).subspan(begin, count);
        slice.moment2_bf16 = Bits(v16).subspan(begin, count);
      } else {
        slice.moment1 = Floats(m).subspan(begin, count);
        slice.moment2 = Floats(v).subspan(begin, count);
      }
      AdamWStepBf16(Bits(p16).subspan(begin, count), Bits(low).subspan(begin, count), slice, scalars);
    });
  };
  auto fused = [&] {
    at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.999, 0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
  };
  struct Case { const char* name; double bytes; std::function<void()> work; double best = 1e9; };
  Case cases[] = {{"ours, fp32", 28.0, [&] { ours(false); }},
                  {"torch fused, fp32", 28.0, fused},
                  {"ours, bf16 with split master", 28.0, [&] { ours(true); }},
                  {"torch fused, fp32, and cast to bf16", 34.0, [&] { fused(); cast.copy_(p); }},
                  {"ours, bf16, gradient in bf16", 26.0, [&] { narrow(false); }},
                  {"ours, bf16, gradient and moments too", 18.0, [&] { narrow(true); }}};
  for (Case& one : cases) one.work();   // pages are touched
  for (int round = 0; round < rounds; ++round) {
    for (Case& one : cases) one.best = std::min(one.best, Seconds(one.work));
  }
  std::printf("%lld million elements, %d threads, best of %d alternated rounds\n", static_cast<long long>(n / 1'000'000), threads, rounds);
  for (const Case& one : cases) {
    std::printf("%-38s %8.2f ms  %6.1f GB/s\n", one.name, one.best * 1e3, static_cast<double>(n) * one.bytes / one.best / 1e9);
  }
  std::printf("fp32: ours is %.2f times as fast; bf16: %.2f times as fast as fused and cast\n", cases[1].best / cases[0].best,
              cases[3].best / cases[2].best);
}
