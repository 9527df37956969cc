#pragma once

// The ZeRO engine: one rank's part of training a model whose optimizer, gradients or weights are sharded over a group.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/checkpoint/training_state.h"
#include "train/collective/group.h"
#include "train/config/model_config.h"
#include "train/config/recompute.h"
#include "train/data/batches.h"
#include "train/model/adapter_layout.h"
#include "train/model/layout.h"
#include "train/model/weight_source.h"
#include "train/optim/adamw.h"

namespace argosy::train {

struct EngineOptions {
  int zero_stage = 2;          // 0: all replicated, 1: optimizer sharded, 2: gradients too, 3: weights too
  DType dtype = DType::kF32;   // of weights and computation: kF32 or kBF16 (with an exact fp32 master)
  AdamWOptions adamw;
  DType moments = DType::kF32; // of AdamW; kBF16: rounded by chance, for weights in bf16
  std::string offload;         // folder of the file that keeps the optimizer's state between steps; empty: memory
  double weight_decay = 0.0;
  bool decay_vectors = true;   // false: biases and norms have no weight decay
  double max_grad_norm = 1.0;  // 0: no clipping
  // Tensors whose names one of these regular expressions matches keep their values; they count in no norm.
  std::vector<std::string> freeze;
  Recompute recompute = Recompute::kFull;   // of a layer in its backward; the bits do not depend on it
  uint64_t seed = 42;          // of the adapters' dropout, and of moments' rounding
  int threads = 0;             // torch threads of the thread that uses the engine; 0: as they are
};

// Seconds of the calling thread, by what it did.
struct StepTimes {
  double forward = 0;      // of all units, the loss with its backward included
  double backward = 0;
  double optimizer = 0;
  double waiting = 0;      // for other ranks
};

// One line of the schedule as it ran.
struct TracedLine {
  std::string name;        // "backward layer 3"
  int32_t micro_batch = 0;
  double begin = 0;        // seconds since the trace was started
  double seconds = 0;
};

struct StepResult {
  double loss = 0;            // mean over all ranks' target tokens of the step
  double grad_norm = 0;       // before clipping
  int64_t target_tokens = 0;  // of all ranks
  bool skipped = false;       // loss or norm was not finite: nothing changed
  // Of a skipped step: the first tensor of this rank that is not finite, with its unit; empty when it has none.
  std::string not_finite;
  StepTimes times;
};

// This rank's own sums: the caller decides how ranks are averaged.
struct EvaluateResult {
  double nll = 0;
  int64_t target_tokens = 0;
};

// Low-rank adapters to train beside frozen weights, with their values now: fp32 and whole on every rank.
struct AdapterStart {
  const AdapterLayout* layout = nullptr;
  const WeightSource* values = nullptr;   // of the layout's tensors
};

// The optimizer of a saved training state, to go on from.
struct OptimizerStart {
  int64_t steps = 0;
  int64_t skipped = 0;
  const WeightSource* moment1 = nullptr;
  const WeightSource* moment2 = nullptr;
};

// Part of a tensor that a rank owns.
struct Extent {
  std::string tensor;
  int64_t begin = 0;  // in elements of the flattened tensor
  int64_t count = 0;
};

// Knows this rank's weights, moments and gradients, and the schedule by which they are used. A step's update is decided by its
// commit and applied unit by unit at the start of whatever comes next (TrainStep, Evaluate, Flush): until then nothing has changed,
// so clipping is exact, and a step that is not finite leaves no trace.
//
// Thread:   one; the group's own threads move data meanwhile.
// Lifetime: the group outlives the engine.
// Failure:  errors of the group, and ids or shapes that do not fit. Every rank must make the same calls in the same order, each
//           with the same number of micro-batches (one may have no rows). After an error of the group the engine is not used again.
class Engine {
 public:
  // Reads this rank's weights from `source` (stages 0-2: all of them; stage 3: its share). With `optimizer`, `source` gives the fp32
  // masters that belong to it, and training goes on, on any number of ranks and in any stage, where it was saved. With `adapter`, the weights of
  // `source` stay as they are and have neither gradients nor moments; extents, states and moments are then the adapter's.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const ModelConfig& config, const WeightSource& source, Group* group,
                                                        const EngineOptions& options, const OptimizerStart* optimizer = nullptr,
                                                        const AdapterStart* adapter = nullptr);
  ~Engine();

  // One optimizer step over the micro-batches of all ranks, with learning rate `lr`.
  absl::StatusOr<StepResult> TrainStep(std::span<const MicroBatch> micro_batches, double lr);
  absl::StatusOr<EvaluateResult> Evaluate(const MicroBatch& batch);
  // Applies what is due and brings all weights up to date: before saving.
  absl::Status Flush();

  int64_t steps() const;    // optimizer steps decided so far
  int64_t skipped() const;  // steps that were not finite
  const ModelConfig& config() const;
  const ModelLayout& layout() const;

  // How what is trained is kept: by the stage, or as adapters are, in stage 0 and fp32.
  int trained_stage() const;
  DType trained_dtype() const;

  // What `rank` owns, in checkpoint order within each unit. The ranks' extents cover every tensor once.
  std::vector<Extent> ExtentsOf(int rank) const;
  // The weights of `extent` as they are computed with, little-endian, after Flush. In stage 3 an extent of another rank is an error;
  // in stages 0-2 any range of any tensor can be read.
  absl::Status ReadWeights(const Extent& extent, std::span<std::byte> out) const;
  // fp32 masters or moments of `extent`, after Flush: of what this rank owns, in stage 0 of everything.
  absl::Status ReadState(TensorPart part, const Extent& extent, std::span<float> out) const;
  // Bytes this rank holds in memory for weights, gradients and optimizer between steps, and of the optimizer in a file.
  int64_t StateBytes() const;
  int64_t OffloadedBytes() const;

  // From now on every line that runs is noted, until null is given. Not owned.
  void TraceInto(std::vector<TracedLine>* lines);
  // The lines of one step.
  std::string PrintSchedule(int micro_batches) const;

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// What this machine's torch does at best on `threads` threads: floating-point operations a second of a 2048^3 product in bf16.
double PeakFlops(int threads);

}  // namespace argosy::train
