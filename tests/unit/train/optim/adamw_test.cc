#include "train/optim/adamw.h"

#include <bit>
#include <filesystem>
#include <cstdlib>
#include <limits>
#include <thread>

#include "nlohmann/json.hpp"
#include "runtime/base/file.h"
#include "runtime/base/prng.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "train/optim/state_file.h"

namespace argosy::train {
namespace {

// Whether one pattern survives Split and Join, and whether the parameter is the pattern rounded half up.
bool RoundTrips(uint32_t bits) {
  float master = std::bit_cast<float>(bits);
  SplitFloat halves = Split(master);
  uint32_t back = std::bit_cast<uint32_t>(Join(halves));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return back == 0x7fc00000u && halves.parameter == 0x7fc0;
  uint32_t rounded = (bits >> 16) + ((bits >> 15) & 1);
  return back == bits && halves.parameter == rounded;
}

TEST_CASE("Split: every one of the 2^32 fp32 patterns comes back from its bf16 parameter and lower half") {
  constexpr int kThreads = 2;
  std::vector<uint64_t> lost(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&lost, t] {
      uint64_t count = 0;
      uint32_t begin = t == 0 ? 0 : 0x80000000u;
      for (uint32_t i = 0; i < 0x80000000u; ++i) count += RoundTrips(begin + i) ? 0 : 1;
      lost[t] = count;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(lost[0] == 0);
  CHECK(lost[1] == 0);
}

struct Arrays {
  std::vector<float> p, m, v, g;
  std::vector<uint16_t> p16, low;

  explicit Arrays(size_t n, uint64_t seed) : p(n), m(n), v(n), g(n), p16(n), low(n) {
    Prng prng(seed);
    auto value = [&] { return static_cast<float>(std::ldexp(prng.Unit() - 0.5, static_cast<int>(prng.Below(30)) - 20)); };
    for (size_t i = 0; i < n; ++i) {
      p[i] = value();
      m[i] = value();
      v[i] = value() * value();
      v[i] = v[i] < 0 ? -v[i] : v[i];
      g[i] = value();
      SplitFloat halves = Split(p[i]);
      p16[i] = halves.parameter;
      low[i] = halves.low;
    }
    if (n > 40) {
      g[33] = 0.0f;
      v[34] = 0.0f;
      m[35] = std::numeric_limits<float>::denorm_min();
      g[36] = std::numeric_limits<float>::infinity();
    }
  }
  AdamWSlice Slice() { return {.moment1 = m, .moment2 = v, .gradient = g}; }
};

template <class T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST_CASE("AdamW: the vectorised pass equals the scalar oracle bit for bit") {
  for (size_t n : {0, 1, 7, 64, 1000, 65536}) {
    Arrays fast(n, n + 1), slow(n, n + 1);
    for (int64_t step = 1; step <= 5; ++step) {
      AdamWScalars s = ScalarsFor({}, step, 1e-3 * static_cast<double>(step), 0.01, 0.37);
      AdamWStepF32(fast.p, fast.Slice(), s);
      AdamWStepF32Scalar(slow.p, slow.Slice(), s);
    }
    CHECK(SameBits(fast.p, slow.p));
    CHECK(SameBits(fast.m, slow.m));
    CHECK(SameBits(fast.v, slow.v));
    Arrays fast16(n, n + 2), slow16(n, n + 2);
    for (int64_t step = 1; step <= 5; ++step) {
      AdamWScalars s = ScalarsFor({}, step, 1e-3, 0.1, 1.0);
      AdamWStepBf16(fast16.p16, fast16.low, fast16.Slice(), s);
      AdamWStepBf16Scalar(slow16.p16, slow16.low, slow16.Slice(), s);
    }
    CHECK(SameBits(fast16.p16, slow16.p16));
    CHECK(SameBits(fast16.low, slow16.low));
    CHECK(SameBits(fast16.m, slow16.m));
  }
}

TEST_CASE("AdamW: a gradient in bf16 does what its numbers do in fp32, and has their sum of squares") {
  for (size_t n : {1, 7, 1000, 4099}) {
    Arrays narrow(n, n), wide(n, n), oracle(n, n);
    std::vector<uint16_t> gradient(n);
    for (size_t i = 0; i < n; ++i) {
      gradient[i] = Bf16FromFloat(wide.g[i]);
      wide.g[i] = FloatFromBf16(gradient[i]);
    }
    const AdamWScalars s = ScalarsFor({}, 3, 1e-3, 0.1, 0.7);
    const auto slice = [&](Arrays& arrays) { return AdamWSlice{.moment1 = arrays.m, .moment2 = arrays.v, .gradient_bf16 = gradient}; };
    AdamWStepBf16(narrow.p16, narrow.low, slice(narrow), s);
    AdamWStepBf16Scalar(oracle.p16, oracle.low, slice(oracle), s);
    AdamWStepBf16(wide.p16, wide.low, wide.Slice(), s);
    for (const Arrays* other : {&wide, &oracle}) {
      CHECK(SameBits(narrow.p16, other->p16));
      CHECK(SameBits(narrow.low, other->low));
      CHECK(SameBits(narrow.m, other->m));
      CHECK(SameBits(narrow.v, other->v));
    }
    CHECK(SumOfSquares(std::span<const uint16_t>(gradient)) == SumOfSquares(std::span<const float>(wide.g)));
  }
}

TEST_CASE("AdamW: a thousand steps with zeros, denormals, infinities, ties and odd lengths keep the oracle's bits") {
  constexpr size_t kElements = 611;   // not a multiple of any vector
  const float kInfinity = std::numeric_limits<float>::infinity(), kTiny = std::numeric_limits<float>::denorm_min();
  const float kSpecials[] = {0.0f, -0.0f, kTiny, -kTiny, 1e-39f, -3e-41f, std::numeric_limits<float>::min(), 1e30f, -1e30f, 3.4e38f, kInfinity,
                             -kInfinity, std::numeric_limits<float>::quiet_NaN()};
  Arrays f32(kElements, 5), f32_oracle(kElements, 5), bf16(kElements, 6), bf16_oracle(kElements, 6);
  // Masters half way between two bf16 numbers, both ways of rounding, and beside.
  for (Arrays* arrays : {&bf16, &bf16_oracle}) {
    for (size_t i = 0; i < 64; ++i) {
      uint32_t bits = (0x3f80u + static_cast<uint32_t>(i)) << 16 | (0x7fffu + static_cast<uint32_t>(i % 3));
      SplitFloat halves = Split(std::bit_cast<float>(bits));
      arrays->p16[100 + i] = halves.parameter;
      arrays->low[100 + i] = halves.low;
      arrays->m[100 + i] = arrays->v[100 + i] = 0;
    }
  }
  Prng prng(77);
  for (int64_t step = 1; step <= 1000; ++step) {
    std::vector<float> gradient(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      gradient[i] = static_cast<float>(std::ldexp(prng.Unit() - 0.5, static_cast<int>(prng.Below(60)) - 40));
      // Ten elements a step see a special value; infinities and NaN (the last three) only in a few places, whose later steps stay so.
      if (prng.Below(61) == 0) gradient[i] = kSpecials[prng.Below(i % 50 == 0 ? std::size(kSpecials) : std::size(kSpecials) - 3)];
      if (i >= 100 && i < 132) gradient[i] = 0;   // ties stay ties
    }
    AdamWScalars s = ScalarsFor({.eps = step % 2 == 0 ? 1e-8 : 1e-6}, step, 1e-3 / static_cast<double>(step % 7 + 1), 0.01 * static_cast<double>(step % 3),
                                step % 5 == 0 ? 0.37 : 1.0);
    f32.g = f32_oracle.g = bf16.g = bf16_oracle.g = gradient;
    AdamWStepF32(f32.p, f32.Slice(), s);
    AdamWStepF32Scalar(f32_oracle.p, f32_oracle.Slice(), s);
    AdamWStepBf16(bf16.p16, bf16.low, bf16.Slice(), s);
    AdamWStepBf16Scalar(bf16_oracle.p16, bf16_oracle.low, bf16_oracle.Slice(), s);
    bool same = SameBits(f32.p, f32_oracle.p) && SameBits(f32.m, f32_oracle.m) && SameBits(f32.v, f32_oracle.v) &&
                SameBits(bf16.p16, bf16_oracle.p16) && SameBits(bf16.low, bf16_oracle.low) && SameBits(bf16.m, bf16_oracle.m) &&
                SameBits(bf16.v, bf16_oracle.v);
    INFO("step " << step);
    REQUIRE(same);
  }
  size_t finite = 0, infinite = 0;
  for (float p : f32.p) std::isfinite(p) ? ++finite : ++infinite;
  CHECK(finite > 500);
  CHECK(infinite > 0);
}

TEST_CASE("AdamW: moments in bf16 have the scalar oracle's bits, however a shard is cut, and other steps are rounded otherwise") {
  constexpr size_t kElements = 1003;
  Arrays start(kElements, 21);
  start.g[36] = 1.0f;
  std::vector<uint16_t> moment1(kElements), moment2(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    moment1[i] = Bf16FromFloat(start.m[i]);
    moment2[i] = Bf16FromFloat(start.v[i]);
  }
  struct Shard { std::vector<uint16_t> p, low, m, v; };
  Shard fast{start.p16, start.low, moment1, moment2}, slow = fast, cut = fast, other = fast;
  for (int64_t step = 1; step <= 20; ++step) {
    const AdamWScalars s = ScalarsFor({}, step, 1e-3, 0.1, 0.5);
    auto slice = [&](Shard& shard, size_t begin, size_t count, uint32_t key) {
      return AdamWSlice{.gradient = std::span(start.g).subspan(begin, count), .moment1_bf16 = std::span(shard.m).subspan(begin, count),
                        .moment2_bf16 = std::span(shard.v).subspan(begin, count), .first = static_cast<uint32_t>(begin), .key = key};
    };
    const auto key = static_cast<uint32_t>(step);
    AdamWStepBf16(fast.p, fast.low, slice(fast, 0, kElements, key), s);
    AdamWStepBf16Scalar(slow.p, slow.low, slice(slow, 0, kElements, key), s);
    AdamWStepBf16(other.p, other.low, slice(other, 0, kElements, key + 1), s);
    for (auto [begin, end] : {std::pair<size_t, size_t>{0, 64}, {64, 65}, {65, kElements}}) {
      AdamWStepBf16(std::span(cut.p).subspan(begin, end - begin), std::span(cut.low).subspan(begin, end - begin), slice(cut, begin, end - begin, key), s);
    }
  }
  for (const Shard* same : {&slow, &cut}) {
    CHECK(SameBits(fast.p, same->p));
    CHECK(SameBits(fast.low, same->low));
    CHECK(SameBits(fast.m, same->m));
    CHECK(SameBits(fast.v, same->v));
  }
  CHECK_FALSE(SameBits(fast.v, other.v));
}

TEST_CASE("AdamW: a second moment in bf16 follows the one in fp32, where rounding to nearest would leave it where it is") {
  constexpr size_t kElements = 4096;
  std::vector<uint16_t> p(kElements), low(kElements), m(kElements), v(kElements, Bf16FromFloat(1.0f)), nearest(kElements, Bf16FromFloat(1.0f));
  std::vector<float> gradient(kElements, 1e-3f);
  for (int64_t step = 1; step <= 1000; ++step) {
    AdamWStepBf16(p, low, {.gradient = gradient, .moment1_bf16 = m, .moment2_bf16 = v, .key = static_cast<uint32_t>(step)}, ScalarsFor({}, step, 0, 0, 1));
    nearest[0] = Bf16FromFloat(FloatFromBf16(nearest[0]) * 0.999f + 0.001f * 1e-6f);
  }
  double mean1 = 0, mean2 = 0;
  for (size_t i = 0; i < kElements; ++i) {
    mean1 += FloatFromBf16(m[i]) / static_cast<double>(kElements);
    mean2 += FloatFromBf16(v[i]) / static_cast<double>(kElements);
  }
  CHECK(mean2 == Approx(std::pow(0.999, 1000)).epsilon(0.01));
  CHECK(mean1 == Approx(1e-3).epsilon(0.01));
  CHECK(FloatFromBf16(nearest[0]) == 1.0f);
}

TEST_CASE("AdamW: a bf16 shard with its lower halves trains exactly as an fp32 shard does") {
  Arrays a(4096, 9), b(4096, 9);
  a.g[36] = b.g[36] = 1.0f;
  for (int64_t step = 1; step <= 20; ++step) {
    AdamWScalars s = ScalarsFor({.eps = 1e-6}, step, 1e-3, 0.01, 1.0);
    AdamWStepF32(a.p, a.Slice(), s);
    AdamWStepBf16(b.p16, b.low, b.Slice(), s);
  }
  std::vector<float> joined(4096);
  for (size_t i = 0; i < joined.size(); ++i) joined[i] = Join({b.p16[i], b.low[i]});
  CHECK(SameBits(joined, a.p));
}

TEST_CASE("AdamW: it is the formula, computed in double") {
  Arrays a(1000, 3);
  a.g[36] = 1.0f;
  Arrays before = a;
  AdamWStepF32(a.p, a.Slice(), ScalarsFor({}, 7, 2e-3, 0.05, 0.5));
  for (size_t i = 0; i < a.p.size(); ++i) {
    double g = before.g[i] * 0.5;
    double m = 0.9 * before.m[i] + 0.1 * g;
    double v = 0.999 * before.v[i] + 0.001 * g * g;
    double p = before.p[i] * (1 - 2e-3 * 0.05);
    double update = 2e-3 * (m / (1 - std::pow(0.9, 7))) / (std::sqrt(v / (1 - std::pow(0.999, 7))) + 1e-8);
    REQUIRE(std::abs(a.p[i] - (p - update)) <= 1e-5 * std::abs(update) + 2e-7 * std::abs(p));
  }
}

TEST_CASE("AdamW: seven steps are those of DeepSpeed's CPU Adam, to the rounding of fp32") {
  const nlohmann::json reference = nlohmann::json::parse(ReadFile("tests/parity/deepspeed.json").value())["adam"];
  auto p = reference["before"].get<std::vector<float>>();
  std::vector<float> m(p.size()), v(p.size());
  AdamWOptions options{.beta1 = reference["betas"][0], .beta2 = reference["betas"][1], .eps = reference["eps"]};
  for (size_t step = 0; step < reference["lr"].size(); ++step) {
    auto gradient = reference["gradients"][step].get<std::vector<float>>();
    AdamWStepF32(p, {m, v, gradient}, ScalarsFor(options, static_cast<int64_t>(step) + 1, reference["lr"][step], reference["weight_decay"], 1.0));
  }
  for (size_t i = 0; i < p.size(); ++i) {
    INFO("element " << i);
    CHECK(p[i] == Approx(reference["after"][i].get<double>()).epsilon(1e-6).margin(1e-8));
    CHECK(m[i] == Approx(reference["moment1"][i].get<double>()).epsilon(2e-6).margin(1e-7 * std::abs(p[i])));
    CHECK(v[i] == Approx(reference["moment2"][i].get<double>()).epsilon(2e-6));
    // The moves are larger than what is forgiven.
    CHECK(std::abs(reference["after"][i].get<double>() - reference["before"][i].get<double>()) > 1e-4);
  }
}

TEST_CASE("State file: parts are memory that begins at 0, keep their bytes when they leave, and leave no file behind") {
  testing::TemporaryFolder folder;
  const int64_t sizes[] = {10'000, 0, 4096, 123'457};
  int64_t bytes = 0;
  for (int64_t size : sizes) bytes += StateFile::Rounded(size);
  auto file = StateFile::Create(folder.path(), bytes);
  REQUIRE(file.ok());
  std::vector<std::span<std::byte>> parts;
  for (int64_t size : sizes) parts.push_back((*file)->Take(size));
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < parts.size(); ++i) {
      (*file)->Expect(parts[i]);
      for (size_t at = 0; at < parts[i].size(); ++at) {
        REQUIRE(parts[i][at] == static_cast<std::byte>(round == 0 ? 0 : at * 7 + i + static_cast<size_t>(round) - 1));
        parts[i][at] = static_cast<std::byte>(at * 7 + i + static_cast<size_t>(round));
      }
      CHECK((*file)->Leave(parts[i]).ok());
    }
  }
  CHECK(std::filesystem::is_empty(folder.path()));

  const std::string missing = folder / "none";
  CHECK(StateFile::Create(missing, 1).status().message().find(missing) != std::string_view::npos);
  absl::Status full = StateFile::Create(folder.path(), int64_t{1} << 60).status();
  CHECK(full.message().find("takes 1152921504606846976 bytes in " + folder.path()) != std::string_view::npos);
}

TEST_CASE("SumOfSquares and ClipScale: the global norm and what it makes of gradients") {
  std::vector<float> values(1003);
  double plain = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 17) - 8.0f;
    plain += static_cast<double>(values[i]) * values[i];
  }
  CHECK(SumOfSquares(values) == plain);  // integers: exact in any order
  CHECK(ClipScale(0.5, 1.0) == 1.0);
  CHECK(ClipScale(4.0, 1.0) == 1.0 / (4.0 + 1e-6));
  CHECK(ClipScale(4.0, 0.0) == 1.0);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(!std::isfinite(SumOfSquares(values)));
}

}  // namespace
}  // namespace argosy::train
