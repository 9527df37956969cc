#pragma once

// What a run leaves in its output folder for people and tools to look at: metrics.jsonl, the recipes' result.json and TensorBoard's event files.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "train/report/recipe_report.h"

namespace argosy::train {

inline constexpr char kMetricsName[] = "metrics.jsonl";
inline constexpr char kTensorBoardFolder[] = "tensorboard";

// The records of `text` (JSON lines) up to `total_step`: what a run that goes on from there keeps. Failures stay, results of the end do not.
std::string KeepRecords(const std::string& text, int64_t total_step);

// Appends records (JSON lines) to folder/metrics.jsonl, what the recipes would have reported to folder/result.json, and the numbers in those
// with a "total_step" to the event file that this process began.
//
// Thread:   one at a time.
// Lifetime: of one part of a run; the next begins another event file.
// Failure:  the first write that fails is said, and the rest are not tried.
class RunLog {
 public:
  // Cuts the metrics that are there back to `total_step`.
  absl::Status Open(const std::string& folder, int64_t total_step);
  absl::Status Append(const std::string& lines);

 private:
  std::string metrics_path_, reports_path_, events_path_;
  RecipeReports reports_;
};

}  // namespace argosy::train
