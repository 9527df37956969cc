#include "train/model/weight_source.h"

#include <algorithm>
#include <cmath>
#include <map>
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

// The index-th number of a stream of standard normal ones. SplitMix64's state moves by a constant, so any place of its sequence is
// reached at once; Box-Muller turns two numbers into one.
constexpr uint64_t kStreamStep = 0x9e3779b97f4a7c15ull;
double Normal(uint64_t stream, uint64_t index) {
  Prng prng(stream + 2 * index * kStreamStep);
  double radius = 1.0 - prng.Unit();  // in (0, 1]
  double angle = prng.Unit();
  return std::sqrt(-2.0 * std::log(radius)) * std::cos(2.0 * std::numbers::pi * angle);
}

uint64_t StreamOf(uint64_t seed, std::string_view name) {
  for (char c : name) seed = Prng(seed ^ static_cast<unsigned char>(c)).Next();
  return seed;
}

class RandomSource final : public WeightSource {
 public:
  RandomSource(double deviation, uint64_t seed) : deviation_(deviation), seed_(seed) {}

  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    if (!tensor.is_matrix()) {
      bool norm = tensor.name.ends_with("norm.weight");
      std::fill(out.begin(), out.end(), norm ? 1.0f : 0.0f);
      return absl::OkStatus();
    }
    FillNormal(seed_, tensor.name, begin, deviation_, out);
    return absl::OkStatus();
  }

 private:
  double deviation_;
  uint64_t seed_;
};

class GrownSource final : public WeightSource {
 public:
  GrownSource(const WeightSource& source, int64_t old_rows, int64_t columns, uint64_t seed)
      : source_(source), old_rows_(old_rows), columns_(columns), seed_(seed) {}

  // Takes the mean and deviation of each column of `tensor`'s old rows.
  absl::Status Measure(const TensorRange& tensor) {
    Columns& columns = columns_by_name_[tensor.name];
    columns.mean.assign(columns_, 0.0);
    columns.deviation.assign(columns_, 0.0);
    std::vector<float> row(columns_);
    for (int64_t r = 0; r < old_rows_; ++r) {
      ARGOSY_RETURN_IF_ERROR(source_.Read(tensor, r * columns_, row));
      for (int64_t c = 0; c < columns_; ++c) {
        double change = row[c] - columns.mean[c];  // Welford
        columns.mean[c] += change / static_cast<double>(r + 1);
        columns.deviation[c] += change * (row[c] - columns.mean[c]);
      }
    }
    for (double& d : columns.deviation) d = std::sqrt(1e-9 * d / static_cast<double>(old_rows_));
    return absl::OkStatus();
  }

  absl::Status Read(const TensorRange& tensor, int64_t begin, std::span<float> out) const override {
    auto grown = columns_by_name_.find(tensor.name);
    if (grown == columns_by_name_.end()) return source_.Read(tensor, begin, out);
    int64_t old_elements = old_rows_ * columns_;
    int64_t old_count = std::clamp<int64_t>(old_elements - begin, 0, static_cast<int64_t>(out.size()));
    if (old_count > 0) ARGOSY_RETURN_IF_ERROR(source_.Read(tensor, begin, out.first(old_count)));
    uint64_t stream = StreamOf(seed_, tensor.name);
    for (int64_t i = old_count; i < static_cast<int64_t>(out.size()); ++i) {
      int64_t column = (begin + i) % columns_;
      out[i] = static_cast<float>(grown->second.mean[column] + grown->second.deviation[column] * Normal(stream, begin + i));
    }
    return absl::OkStatus();
  }

 private:
  struct Columns {
    std::vector<double> mean;
    std::vector<double> deviation;
  };

  const WeightSource& source_;
  int64_t old_rows_;
  int64_t columns_;
  uint64_t seed_;
  std::map<std::string, Columns> columns_by_name_;
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

void FillNormal(uint64_t seed, std::string_view name, int64_t begin, double deviation, std::span<float> out) {
  const uint64_t stream = StreamOf(seed, name);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(deviation * Normal(stream, static_cast<uint64_t>(begin) + i));
}

void FillUniform(uint64_t seed, std::string_view name, int64_t begin, double bound, std::span<float> out) {
  const uint64_t stream = StreamOf(seed, name);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(bound * (2.0 * Prng(stream + (static_cast<uint64_t>(begin) + i) * kStreamStep).Unit() - 1.0));
  }
}

std::unique_ptr<WeightSource> WeightsFromHf(const HfWeights& weights) { return std::make_unique<HfSource>(weights); }

std::unique_ptr<WeightSource> RandomWeights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomSource>(config.initializer_range, seed);
}

absl::StatusOr<std::unique_ptr<WeightSource>> GrownVocabulary(const WeightSource& source, const ModelConfig& config,
                                                              int64_t old_vocab_size, uint64_t seed) {
  if (old_vocab_size <= 0 || old_vocab_size > config.vocab_size) {
    return InvalidArgument("a vocabulary of {} cannot grow to {}", old_vocab_size, config.vocab_size);
  }
  auto grown = std::make_unique<GrownSource>(source, old_vocab_size, config.hidden_size, seed);
  ModelLayout layout = MakeLayout(config);
  for (const UnitLayout* unit : {&layout.units.front(), &layout.units.back()}) {
    for (const TensorRange& range : unit->ranges) {
      if (range.is_matrix()) ARGOSY_RETURN_IF_ERROR(grown->Measure(range));
    }
  }
  return std::unique_ptr<WeightSource>(std::move(grown));
}

}  // namespace argosy::train
