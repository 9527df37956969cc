#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/trainer/run_spec.h"

namespace argosy::train {

// The actor of one rank: holds its share of the model and does what the driver asks of all ranks at once. Methods throw; what they throw
// reaches the driver with the rank's node in it.
//
// Thread:   the actor's one.
// Lifetime: of one run.
// Failure:  an error of the group ends the run: the peers get it within the collective time-out.
class RankWorker {
 public:
  RankWorker(int rank, int world_size);
  ~RankWorker();

  RankHello Hello();
  // Rank 0: makes the folder for checkpoints on this node, and checks that one of `bytes` fits.
  void PrepareOutput(std::string directory, int64_t bytes);
  // Opens the streams to the other ranks, then loads this rank's weights.
  RankReady Setup(RunSpec spec, std::vector<Endpoint> endpoints, ShippedSamples train, ShippedSamples eval);
  // Optimizer steps [first, first + count) of the epoch.
  std::vector<StepReport> Train(int64_t epoch, int64_t first, int64_t count);
  EvalReport Evaluate();
  // Rank 0 writes, the others send it their shares.
  SaveReport Save(SaveSpec spec);
  // Greedy continuations, one a prompt, by the model in a folder of this node.
  std::vector<std::vector<int32_t>> Generate(GenerateSpec spec);
  std::string Schedule();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace argosy::train
