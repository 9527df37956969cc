#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "train/trainer/run_spec.h"

namespace argosy::train {

// What a rank throws when another one is gone or did not answer in time: the ranks that are left can go on without it. Its name is the
// type of the TaskError that reaches the driver.
struct PeerLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

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
  // Rank 0: makes the folder for checkpoints on this node, tries whether their storage can be written, checks that `bytes` fit, and says what is in it. Of training states to go on from, every byte
  // is checked; else the newest is named as it is.
  OutputReport PrepareOutput(std::string directory, int64_t bytes, bool goes_on, StorageSpec storage);
  // Rank 0: removes the checkpoints and training states of an earlier run; how many there were.
  int64_t ClearOutput(std::string directory, StorageSpec storage);
  // Whether this node has that token cache, whole.
  bool SeesTokens(std::string path, uint32_t id);
  // Opens the streams to the other ranks, then loads this rank's weights.
  RankReady Setup(RunSpec spec, std::vector<Endpoint> endpoints, ShippedSamples train, ShippedSamples eval);
  // Optimizer steps [first, first + count) of the epoch, their rows dealt to the ranks in these parts (equal without any).
  std::vector<StepReport> Train(int64_t epoch, int64_t first, int64_t count, std::vector<double> deal);
  EvalReport Evaluate();
  // Rank 0 writes, the others send it their shares; or each writes its own.
  SaveReport Save(SaveSpec spec);
  // The same for what the run needs to go on later.
  SaveReport SaveState(SaveStateSpec spec);
  // Greedy continuations, one a prompt, by the model in a folder of this node.
  std::vector<std::vector<int32_t>> Generate(GenerateSpec spec);
  std::string Schedule();
  // What a step is measured against: see PeakFlops. All ranks at once, as in training.
  double MeasurePeak();
  // The lines of the next steps are kept until TakeTrace gives them.
  bool StartTrace();
  std::vector<TracedLine> TakeTrace();
  // Rank 0: the run's metrics and event files in the output folder, from `total_step` on; then more records for them.
  bool OpenLog(std::string directory, int64_t total_step);
  bool AppendLog(std::string lines);
  // Rank 0: a small file of the output folder.
  bool WriteOutput(std::string path, std::string content);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace argosy::train
