#include "train/model/weight_source.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/prng.h"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

class HfSource final : public WeightSource {
 public:
  explicit HfSource(const HfWeights& weights) : weights_(weights) {}
  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    return weights_.ReadRange(tensor.name, begin, out);
  }

 private:
  const HfWeights& weights_;
};

class RandomSource final : public WeightSource {
 public:
  RandomSource(double deviation, uint64_t seed) : deviation_(deviation), seed_(seed) {}

  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    if (!tensor.is_matrix()) {
      bool norm = tensor.name.ends_with("norm.weight");
      std::fill(out.begin(), out.end(), norm ? 1.0f : 0.0f);
      return absl::OkStatus();
    }
    uint64_t stream = seed_;
    for (char c : tensor.name) stream = Prng(stream ^ static_cast<unsigned char>(c)).Next();
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(deviation_ * Normal(stream, begin + i));
    return absl::OkStatus();
  }

 private:
  // The index-th number of a stream of standard normal ones. SplitMix64's state moves by a constant, so any place of its sequence
  // is reached at once; Box-Muller turns two numbers into one.
  static double Normal(uint64_t stream, uint64_t index) {
    constexpr uint64_t kStep = 0x9e3779b97f4a7c15ull;
    Prng prng(stream + 2 * index * kStep);
    double radius = 1.0 - prng.Unit();  // in (0, 1]
    double angle = prng.Unit();
    return std::sqrt(-2.0 * std::log(radius)) * std::cos(2.0 * std::numbers::pi * angle);
  }

  double deviation_;
  uint64_t seed_;
};

}  // namespace

absl::Status ReadFlat(const WeightSource& source, const UnitLayout& unit, int64_t begin, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  int64_t end = begin + static_cast<int64_t>(out.size());
  for (const TensorRange& range : unit.ranges) {
    int64_t from = std::max(begin, range.offset), to = std::min(end, range.offset + range.elements);
    if (from >= to) continue;
    ARGOSY_RETURN_IF_ERROR(source.Read(range, from - range.offset, out.subspan(from - begin, to - from)));
  }
  return absl::OkStatus();
}

std::unique_ptr<WeightSource> WeightsFromHf(const HfWeights& weights) { return std::make_unique<HfSource>(weights); }

std::unique_ptr<WeightSource> RandomWeights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomSource>(config.initializer_range, seed);
}

}  // namespace argosy::train
