#pragma once

// The training state: what a run needs to go on, to the bit, as if it had not stopped. It is a directory that CheckpointWriter makes: fp32
// masters and both moments of every parameter under the names of the model's tensors, so that it loads on any number of ranks and in any ZeRO
// stage, and training_state.json, which says where the run stands and what run it is.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "train/config/model_config.h"

namespace argosy::train {

inline constexpr char kStateStem[] = "training_state";
inline constexpr char kStateJsonName[] = "training_state.json";
inline constexpr char kStateFolder[] = "training_state";   // in a run's output folder; holds "step-N"

// What there is of a tensor.
enum class TensorPart : int64_t { kWeights, kMaster, kMoment1, kMoment2 };
struct PartName {
  TensorPart part = TensorPart::kWeights;
  std::string tensor;
};
// "master.X", "exp_avg.X", "exp_avg_sq.X"; X itself for the weights.
std::string NameOfPart(TensorPart part, std::string_view tensor);
PartName ParsePartName(std::string_view name);
// Of all of a state's tensors: three for each that is trained, fp32.
std::vector<TensorSpec> StateTensors(std::span<const TensorSpec> trained);
std::vector<TensorSpec> StateTensors(const ModelConfig& config);

struct EpochRecord {
  int64_t epoch = 0;             // 0: before training
  int64_t steps = 0;
  double train_seconds = 0;
  double eval_seconds = 0;
  double save_seconds = 0;
  double train_loss = 0;         // mean over target tokens
  double eval_loss = 0;
  double tokens_per_second = 0;
  bool has_eval = false;
};

// What the identity of a run calls the parameters that are trained. A state that does not say is of before there were adapters.
inline constexpr std::string_view kTrainedNote = "trained", kAllWeights = "all weights";

struct TrainingState {
  // The next step to be done: `step` of `epoch`, both from 0.
  int64_t epoch = 0;
  int64_t step = 0;
  int64_t steps_done = 0;        // of all epochs, skipped ones included
  int64_t optimizer_steps = 0;   // the optimizer's count, without skipped ones: the learning rate and the bias correction follow it
  int64_t skipped = 0;
  int64_t rows_per_step = 0;     // the same for the whole run, whatever the number of ranks
  // Of the epoch under way.
  double loss_sum = 0;           // over target tokens
  double target_tokens = 0;
  double epoch_seconds = 0;
  int64_t epoch_tokens = 0;
  std::vector<EpochRecord> epochs;   // that have ended; the base model's evaluation first, where there is one
  std::vector<double> deal;          // the ranks' parts of a step's rows; empty: equal
  std::string checkpoint;            // the newest one of weights; empty: none yet

  // What makes a run this run: a state with other values here is another run's.
  std::map<std::string, std::string> identity;
  // What may change from one part of a run to the next.
  std::map<std::string, std::string> settings;

  std::string ToJson() const;
  static absl::StatusOr<TrainingState> Parse(std::string_view json);
  static absl::StatusOr<TrainingState> Load(const std::string& directory);
};

// The newest finished state under `output_dir`; none when there is none.
absl::StatusOr<std::optional<std::string>> NewestState(const std::string& output_dir);

// The newest one that is whole, read to the end, and why each newer one is not.
struct UsableState {
  std::string directory;              // empty: none
  std::vector<std::string> damaged;   // newest first
};
absl::StatusOr<UsableState> NewestUsableState(const std::string& output_dir);

// Reads every file that the manifest of `directory` lists, and compares sizes and checksums. The error names the damaged file.
absl::Status VerifyCheckpoint(const std::string& directory);

// InvalidArgument that names every value of `now` that the state has otherwise.
absl::Status CheckIdentity(const TrainingState& state, const std::map<std::string, std::string>& now);
// "learning_rate 0.001 -> 0.0005", one each.
std::vector<std::string> ChangedSettings(const TrainingState& state, const std::map<std::string, std::string>& now);

}  // namespace argosy::train
