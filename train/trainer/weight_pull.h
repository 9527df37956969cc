#pragma once

// Rank 0 collects the sharded weights for a checkpoint, in the order of the files and with bounded memory: it asks the owners for pieces,
// several ahead inside a window, over streams that the training group does not use.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/collective/transport.h"
#include "train/model/weight_source.h"
#include "train/parallel/engine.h"

namespace argosy::train {

struct PullOptions {
  int zero_stage = 3;                 // of the engine: below 3 this rank has all weights, in stage 0 all of the optimizer
  DType engine_dtype = DType::kF32;   // of the engine's weights
  int64_t piece_bytes = 4 << 20;      // of one request
  int64_t window_bytes = 256 << 20;   // asked for and not yet written
  DType save_dtype = DType::kF32;     // of the files; weights are converted from what the engine computes with
  absl::Duration deadline = absl::Seconds(60);   // for any one piece to arrive
  // Tensors of the files that no rank trains, which rank 0 reads where they come from, by name.
  struct Frozen {
    const WeightSource* source = nullptr;
    TensorRange range;
  };
  std::map<std::string, Frozen> frozen;
  // Bytes written so far and in all.
  std::function<void(int64_t done, int64_t all)> progress;
};

// On rank 0: asks for and appends every byte of the writer's layout, whose tensors are weights or, by their names (NameOfPart), parts of a
// training state. The other ranks call ServeWeights meanwhile. What rank 0 holds itself is asked of nobody.
absl::Status PullWeights(const Engine& engine, Transport& transport, CheckpointWriter& writer, const PullOptions& options);

// On the other ranks: answers until rank 0 has what it needs.
absl::Status ServeWeights(const Engine& engine, Transport& transport, DType engine_dtype, absl::Duration deadline);

// Instead, where all ranks see the writer's folder. On rank 0: makes the files, writes what it owns, and takes from the others what they say they wrote;
// they call WriteOwn with the same layout meanwhile. `turn`: for the slowest of them.
absl::Status WriteTogether(const Engine& engine, Transport& transport, CheckpointWriter& writer, const PullOptions& options, absl::Duration turn);
absl::Status WriteOwn(const Engine& engine, Transport& transport, const CheckpointLayout& layout, const PullOptions& options, absl::Duration turn);

}  // namespace argosy::train
