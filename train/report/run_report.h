#pragma once

// What the metrics of a run say, after it or while it goes on.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace argosy::train {

struct RunReport {
  std::string text;                           // base model against fine-tuned, epochs, failures
  std::map<std::string, std::string> plots;   // file name -> SVG
};

// From metrics.jsonl's text. An error when it has no step.
absl::StatusOr<RunReport> ReportRun(std::string_view metrics);

}  // namespace argosy::train
