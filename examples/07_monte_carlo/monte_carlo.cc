// Estimates pi with a task for each batch of random points.
#include <argosy/argosy.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>

constexpr int kPoints = 1'000'000;

int64_t PointsInCircle(int seed) {
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  std::uniform_real_distribution<double> any(0, 1);
  int64_t inside = 0;
  for (int i = 0; i < kPoints; ++i) {
    double x = any(random), y = any(random);
    inside += x * x + y * y < 1 ? 1 : 0;
  }
  return inside;
}

int main(int argc, char** argv) {
  argosy::Runtime runtime = argosy::Connect(argc, argv);
  std::vector<int> seeds(16);
  std::iota(seeds.begin(), seeds.end(), 1);

  std::vector<int64_t> inside = argosy::Map<PointsInCircle>(seeds);
  double pi = 4.0 * static_cast<double>(std::accumulate(inside.begin(), inside.end(), int64_t{0})) / (static_cast<double>(kPoints) * 16);
  std::printf("pi is about %.4f\n", pi);
  return std::abs(pi - 3.14159) < 0.002 ? 0 : 1;
}
