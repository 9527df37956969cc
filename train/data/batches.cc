#include "train/data/batches.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/prng.h"
#include "runtime/base/status.h"

namespace argosy::train {
namespace {

template <class T>
void Shuffle(std::span<T> items, Prng& prng) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[prng.Below(i)]);
}

// Room left in each pack, so that the first pack with enough of it is found in O(log n).
class RoomTree {
 public:
  RoomTree(size_t packs, int32_t room) {
    while (leaves_ < packs) leaves_ *= 2;
    most_.assign(2 * leaves_, room);
  }
  // Takes `length` from the first pack that has it and returns the pack.
  size_t Take(int32_t length) {
    size_t node = 1;
    while (node < leaves_) node = most_[2 * node] >= length ? 2 * node : 2 * node + 1;
    size_t pack = node - leaves_;
    most_[node] -= length;
    for (node /= 2; node >= 1; node /= 2) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    return pack;
  }

 private:
  size_t leaves_ = 1;
  std::vector<int32_t> most_;
};

}  // namespace

std::vector<Pack> PackFirstFitDecreasing(std::span<const int64_t> samples, std::span<const int32_t> lengths, int32_t ctx_len) {
  std::vector<int64_t> order(samples.begin(), samples.end());
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  RoomTree room(order.size(), ctx_len);
  std::vector<Pack> packs;
  for (int64_t sample : order) {
    size_t pack = room.Take(lengths[sample]);
    if (pack == packs.size()) packs.emplace_back();
    packs[pack].push_back(sample);
  }
  return packs;
}

absl::StatusOr<BatchPlan> BatchPlan::Make(const SampleSet& samples, const BatchPlanOptions& options) {
  if (samples.size() == 0) return InvalidArgument("there are no rows to train on");
  if (options.rows_per_step < 1) return InvalidArgument("{} rows per optimizer step; expected 1 or more", options.rows_per_step);
  if (options.micro_batches < 1) return InvalidArgument("{} micro-batches per optimizer step; expected 1 or more", options.micro_batches);
  std::vector<int32_t> lengths(static_cast<size_t>(samples.size()));
  for (int64_t i = 0; i < samples.size(); ++i) {
    lengths[i] = samples.Length(i);
    if (lengths[i] > options.ctx_len) {
      return InvalidArgument("sample {} has {} tokens, more than --ctx-len {}", i, lengths[i], options.ctx_len);
    }
  }
  return BatchPlan(std::move(lengths), options);
}

const std::vector<Pack>& BatchPlan::Epoch(int64_t epoch) {
  if (epoch == epoch_) return packs_;
  // One generator an epoch, far from its neighbours' whatever the seed.
  Prng prng(Prng(options_.seed).Next() ^ Prng(static_cast<uint64_t>(epoch) + 0x5eed).Next());
  std::vector<int64_t> order(lengths_.size());
  std::iota(order.begin(), order.end(), 0);
  if (options_.shuffle) Shuffle(std::span(order), prng);
  packs_.clear();
  for (size_t begin = 0; begin < order.size(); begin += kWindow) {
    std::span<const int64_t> window = std::span(order).subspan(begin, std::min<size_t>(kWindow, order.size() - begin));
    if (!options_.pack) {
      for (int64_t sample : window) packs_.push_back({sample});
      continue;
    }
    std::vector<Pack> packed = PackFirstFitDecreasing(window, lengths_, options_.ctx_len);
    if (options_.shuffle) Shuffle(std::span(packed), prng);
    std::move(packed.begin(), packed.end(), std::back_inserter(packs_));
  }
  epoch_ = epoch;
  return packs_;
}

int64_t BatchPlan::RowsInEpoch(int64_t epoch) { return static_cast<int64_t>(Epoch(epoch).size()); }

int64_t BatchPlan::StepsInEpoch(int64_t epoch) {
  return (RowsInEpoch(epoch) + options_.rows_per_step - 1) / options_.rows_per_step;
}

int64_t BatchPlan::TotalSteps(int64_t epochs) {
  int64_t steps = 0;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) steps += StepsInEpoch(epoch);
  return steps;
}

StepRows BatchPlan::Step(int64_t epoch, int64_t step) {
  ARGOSY_CHECK(step >= 0 && step < StepsInEpoch(epoch), "step {} of epoch {}", step, epoch);
  const std::vector<Pack>& packs = Epoch(epoch);
  int64_t begin = step * options_.rows_per_step;
  int64_t count = std::min<int64_t>(options_.rows_per_step, static_cast<int64_t>(packs.size()) - begin);
  StepRows rows;
  for (int64_t m = 0; m < options_.micro_batches; ++m) {
    int64_t from = begin + count * m / options_.micro_batches, to = begin + count * (m + 1) / options_.micro_batches;
    rows.micro_batches.emplace_back(packs.begin() + from, packs.begin() + to);
  }
  return rows;
}

int64_t StepRows::Rows() const {
  int64_t rows = 0;
  for (const auto& micro_batch : micro_batches) rows += static_cast<int64_t>(micro_batch.size());
  return rows;
}

std::span<const Pack> ShareOf(std::span<const Pack> rows, int32_t rank, int32_t world_size, std::span<const double> weights) {
  ARGOSY_CHECK(rank >= 0 && rank < world_size && (weights.empty() || static_cast<int32_t>(weights.size()) == world_size));
  auto count = static_cast<int64_t>(rows.size());
  auto border = [&](int32_t r) -> int64_t {
    if (weights.empty()) return count * r / world_size;
    double all = std::accumulate(weights.begin(), weights.end(), 0.0), before = std::accumulate(weights.begin(), weights.begin() + r, 0.0);
    if (r == world_size || !(all > 0)) return count * r / world_size;
    return std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(count) * (before / all) + 0.5), 0, count);
  };
  return rows.subspan(border(rank), border(rank + 1) - border(rank));
}

std::vector<std::vector<Pack>> EvalBatches(int64_t samples, int64_t batch_size, int32_t rank, int32_t world_size) {
  ARGOSY_CHECK(batch_size > 0 && world_size > 0 && rank >= 0 && rank < world_size);
  int64_t begin = samples * rank / world_size, end = samples * (rank + 1) / world_size;
  int64_t largest_part = (samples + world_size - 1) / world_size;
  std::vector<std::vector<Pack>> batches(static_cast<size_t>((largest_part + batch_size - 1) / batch_size));
  for (int64_t i = begin; i < end; ++i) batches[(i - begin) / batch_size].push_back({i});
  return batches;
}

MicroBatch BuildMicroBatch(const SampleSet& samples, std::span<const Pack> packs, const BatchLayout& layout) {
  MicroBatch batch{.rows = static_cast<int32_t>(packs.size())};
  if (packs.empty()) return batch;
  auto length_of = [&](const Pack& pack) {
    int64_t length = 0;
    for (int64_t sample : pack) length += samples.Length(sample);
    return length;
  };
  int64_t longest = 0;
  for (const Pack& pack : packs) longest = std::max(longest, length_of(pack));
  ARGOSY_CHECK(longest <= layout.ctx_len, "a pack of {} tokens, ctx_len {}", longest, layout.ctx_len);
  batch.ctx = layout.recipe_parity ? layout.ctx_len : std::min<int32_t>(layout.ctx_len, static_cast<int32_t>((longest + 7) / 8 * 8));
  size_t cells = static_cast<size_t>(batch.rows) * static_cast<size_t>(batch.ctx);
  batch.input_ids.assign(cells, layout.pad_id);
  batch.targets.assign(cells, MicroBatch::kNoTarget);
  batch.positions.assign(cells, 0);
  batch.segments.assign(cells, MicroBatch::kPadding);

  for (size_t row = 0; row < packs.size(); ++row) {
    size_t row_begin = row * static_cast<size_t>(batch.ctx);
    size_t at = row_begin;
    if (layout.padding_side == PaddingSide::kLeft) at += static_cast<size_t>(batch.ctx - length_of(packs[row]));
    int32_t segment = 0;
    for (int64_t sample : packs[row]) {
      std::span<const int32_t> ids = samples.Sample(sample);
      std::span<const uint8_t> is_target = samples.Targets(sample);
      for (size_t i = 0; i < ids.size(); ++i) {
        batch.input_ids[at + i] = ids[i];
        batch.positions[at + i] = static_cast<int32_t>(i);
        batch.segments[at + i] = segment;
        if (i + 1 < ids.size() && is_target[i + 1] != 0) batch.targets[at + i] = ids[i + 1];
      }
      at += ids.size();
      batch.useful_tokens += static_cast<int64_t>(ids.size());
      ++segment;
    }
    if (layout.recipe_parity) {
      for (int32_t i = 0; i < batch.ctx; ++i) {
        batch.positions[row_begin + i] = i;
        if (i + 1 < batch.ctx) batch.targets[row_begin + i] = batch.input_ids[row_begin + i + 1];
      }
    }
  }
  batch.target_tokens = std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t != MicroBatch::kNoTarget; });
  return batch;
}

}  // namespace argosy::train
