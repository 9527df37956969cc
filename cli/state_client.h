#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/head_flags.h"
#include "nlohmann/json.hpp"

namespace argosy::cli {

struct StateRequest {
  std::string kind;
  std::vector<std::string> filters;   // key=value, key!=value
  size_t limit = 100;
  std::string id;
  bool detail = false;
};
struct StateRows {
  std::vector<nlohmann::ordered_json> rows;
  uint64_t matched = 0;
  uint64_t missing = 0;
  std::vector<std::string> warnings;
};
// The head's rows, in as many pages as it takes. INVALID_ARGUMENT for a filter that is not key=value.
absl::StatusOr<StateRows> ListState(const HeadChannel& head, const StateRequest& request);

// Columns as wide as they need to be; empty cells are "-".
void PrintTable(const std::vector<nlohmann::ordered_json>& rows);
// What the rows do not say: how many were left out and are gone, and what could not be asked. To standard error.
void PrintLeftOut(const StateRows& list, const char* what);

}  // namespace argosy::cli
