#pragma once

// The order of one training step, as a list that can be printed, tested and timed.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace argosy::train {

enum class Action : uint8_t {
  kStep,          // apply the optimizer's step that the last commit decided, to the rank's share of the unit
  kGather,        // start to collect the unit's weights from the ranks' shares
  kForward,       // h[unit + 1] = unit(h[unit]); waits for the gather
  kLoss,          // forward of the head, loss; with its backward when training
  kBackward,      // recompute the unit from h[unit], then its backward; waits for the gather
  kRelease,       // give up gathered weights
  kReduce,        // start to sum the unit's gradient into the owners' shares
  kCommit,        // gradient norm, loss and non-finite flag, summed over ranks: the end of the step
};

struct Line {
  Action action;
  int32_t unit = -1;
  int32_t micro_batch = 0;
};

struct ScheduleOptions {
  int32_t units = 0;  // embedding, layers, head
  int stage = 2;      // ZeRO 0..3
  int32_t micro_batches = 1;
  bool tied = false;  // the head uses the embedding's matrix
  // Of adapters beside frozen weights: which units have something to train. Empty: all of them do, and it is their weights. What is trained is then
  // whole on every rank, whatever the stage.
  std::vector<bool> trained;
};

std::string_view Name(Action action);

// Stages 0-2 hold all weights: a gather follows a step, in the first micro-batch only. Stage 0 steps everything everywhere and
// gathers nothing. Stage 3 gathers a unit before each use and releases it after. Stages 0-1 reduce once, in the last micro-batch;
// stages 2-3 in each. With adapters, stage 3 gathers and releases the frozen weights, the others gather nothing; units below the first one that is
// trained have no backward; each trained one is stepped everywhere and reduced once.
std::vector<Line> TrainSchedule(const ScheduleOptions& options);
// Forward of one batch; steps that are still due included.
std::vector<Line> EvaluateSchedule(const ScheduleOptions& options);

// One line each: "backward  micro 0  layer 3". `names` by unit.
std::string Print(const std::vector<Line>& schedule, const std::vector<std::string>& names);

}  // namespace argosy::train
