#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "train/data/samples.h"
#include "train/tokenizer/tokenizer.h"

namespace argosy::train {

// One row of a batch: the samples that stand in it, in order.
using Pack = std::vector<int64_t>;

// What one rank computes at once. Matrices are row-major, [rows, ctx].
struct MicroBatch {
  static constexpr int32_t kNoTarget = -100;
  static constexpr int32_t kPadding = -1;  // segment of padding

  int32_t rows = 0, ctx = 0;
  std::vector<int32_t> input_ids;
  // The token after this one in its sample, which is what is to be predicted here; kNoTarget where none is.
  std::vector<int32_t> targets;
  std::vector<int32_t> positions;
  // Number of the sample within its row, from 0: a token attends to earlier tokens of equal segment.
  std::vector<int32_t> segments;
  int64_t target_tokens = 0;
  int64_t useful_tokens = 0;  // that are not padding
  int64_t first_row = 0;      // of its rows among all of the optimizer step's: what random numbers are keyed by

  double UsefulShare() const { return input_ids.empty() ? 0 : static_cast<double>(useful_tokens) / static_cast<double>(input_ids.size()); }
};

// How samples become a matrix.
struct BatchLayout {
  int32_t ctx_len = 512;
  int32_t pad_id = 0;
  PaddingSide padding_side = PaddingSide::kRight;
  // As the reference recipe trains: every row padded to ctx_len, positions count from the row's first column, padding and
  // prompt are targets. Else padding has no target, positions count from each sample's start, and a row is as
  // long as the longest of the micro-batch needs, in steps of 8.
  bool recipe_parity = false;
};

// Packs longer than ctx_len are a caller's bug. No packs give a batch of 0 rows.
MicroBatch BuildMicroBatch(const SampleSet& samples, std::span<const Pack> packs, const BatchLayout& layout);

struct BatchPlanOptions {
  int32_t ctx_len = 512;
  int64_t rows_per_step = 16;  // of all ranks and micro-batches together; the last step of an epoch may have fewer
  int32_t micro_batches = 1;   // per step, on every rank
  uint64_t seed = 42;
  bool shuffle = true;
  bool pack = true;

  static BatchPlanOptions RecipeParity(int32_t ctx_len, int64_t rows_per_step, int32_t micro_batches) {
    return {.ctx_len = ctx_len, .rows_per_step = rows_per_step, .micro_batches = micro_batches, .shuffle = false, .pack = false};
  }
};

// One optimizer step: the rows of each micro-batch, over all ranks.
struct StepRows {
  std::vector<std::vector<Pack>> micro_batches;
  int64_t Rows() const;
};

// Which rows every optimizer step trains on: a pure function of (samples' lengths, options, epoch, step), so all ranks agree without a word,
// and the same for every number of ranks. Rows are shuffled by (seed, epoch), cut into windows of 8,192, packed
// first-fit-decreasing inside a window, and the packs of a window shuffled.
//
// Thread:   one at a time (the last epoch's packs are kept).
// Lifetime: copies the lengths; the samples may go.
class BatchPlan {
 public:
  static constexpr int64_t kWindow = 8192;

  static absl::StatusOr<BatchPlan> Make(const SampleSet& samples, const BatchPlanOptions& options);

  int64_t StepsInEpoch(int64_t epoch);
  int64_t RowsInEpoch(int64_t epoch);
  // Optimizer steps of the first `epochs` epochs.
  int64_t TotalSteps(int64_t epochs);
  // `step` counts from 0 within the epoch and is below StepsInEpoch.
  StepRows Step(int64_t epoch, int64_t step);

  const BatchPlanOptions& options() const { return options_; }

 private:
  BatchPlan(std::vector<int32_t> lengths, BatchPlanOptions options) : lengths_(std::move(lengths)), options_(options) {}
  const std::vector<Pack>& Epoch(int64_t epoch);

  std::vector<int32_t> lengths_;
  BatchPlanOptions options_;
  int64_t epoch_ = -1;
  std::vector<Pack> packs_;
};

// First-fit-decreasing: samples (indices into `lengths`), longest first, each into the first pack with room for it.
std::vector<Pack> PackFirstFitDecreasing(std::span<const int64_t> samples, std::span<const int32_t> lengths, int32_t ctx_len);

// The rows of one micro-batch that `rank` computes: a contiguous part, in proportion to the ranks' weights (equal without any). May be empty.
// Over all ranks the parts are the whole, in order.
std::span<const Pack> ShareOf(std::span<const Pack> rows, int32_t rank, int32_t world_size, std::span<const double> weights = {});

// Evaluation: every sample once, in file order, one a row; a contiguous part for each rank, in batches of at most batch_size. Every
// rank gets the same number of batches, the last ones empty where its part is smaller.
std::vector<std::vector<Pack>> EvalBatches(int64_t samples, int64_t batch_size, int32_t rank, int32_t world_size);

}  // namespace argosy::train
