#pragma once

// What a run prints, as text.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
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
};
// "[epoch 1/4 step 12/500] loss: 1.2345 lr: 1.0e-03 grad-norm: 0.52 tokens/s: 51000 useful: 97% ETA: 1 min 12 s".
std::string FormatStep(const StepLine& line);

struct EpochRow {
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
// One row an epoch: time, loss, perplexity, throughput.
std::string FormatEpochTable(const std::vector<EpochRow>& rows);

}  // namespace argosy::train
