#pragma once

// What a run prints, as text.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "train/checkpoint/training_state.h"
#include "train/trainer/run_spec.h"

namespace argosy::train {

// exp(loss), infinity where it overflows.
double Perplexity(double mean_loss);

double SecondsSince(absl::Time begin);
// "1.5 s", "2 min 03 s", "1 h 04 min".
std::string FormatSeconds(double seconds);
// "512 B", "1.5 MB", "7.2 GB": powers of 1000.
std::string FormatBytes(int64_t bytes);

struct StepLine {
  StepReport report;
  int64_t steps_in_epoch = 0;
  int64_t epochs = 0;
  double tokens_per_second = 0;
  double useful_share = 1;
  double eta_seconds = 0;
  double done_share = 0;           // of the run's steps
  double mfu = 0;                  // 0: not known
  int64_t peak_bytes = 0;          // of the rank that has most
};
// "[epoch 1/4 step 12/500] loss: 1.2345 lr: 1.0e-03 grad-norm: 0.52 tokens/s: 51000 useful: 97% ETA: 1 min 12 s [####......] mem: 1.2 GB mfu: 43%".
std::string FormatStep(const StepLine& line);

// "[epoch 0 step 11] loss: 1.2345 step-time: 0.25": the reference recipes' line, epoch and step from 0, numbers unrounded.
std::string FormatRecipeStep(const StepReport& report);

// One row an epoch: time, loss, perplexity, throughput.
std::string FormatEpochTable(const std::vector<EpochRecord>& rows);

}  // namespace argosy::train
