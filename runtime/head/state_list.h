#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/head/head_core.h"

namespace argosy::head {

struct StateFilter {
  std::string key;          // a field, or one of a field's own: "labels.zone"
  std::string value;
  bool not_equal = false;
};

struct StateQuery {
  std::string kind;         // nodes, actors, tasks, objects, workers, placement-groups, jobs, task-summary
  std::vector<StateFilter> filters;
  size_t limit = 100;
  size_t offset = 0;
  std::string id;           // only the row whose id begins so, or whose name is this
  bool detail = false;      // all fields
};

struct StateList {
  std::vector<std::string> rows;       // JSON objects
  uint64_t matched = 0;
  uint64_t missing = 0;                // rows that are not kept any more
  std::vector<std::string> warnings;   // what could not be asked
};

// The rows of one kind. Workers and objects are asked of the nodes; one that does not answer is a warning. `done` runs once, on the loop.
// Errors: INVALID_ARGUMENT for a kind or field that there is none of, with those there are.
void ListState(HeadCore& core, const StateQuery& query, std::function<void(absl::StatusOr<StateList>)> done);

}  // namespace argosy::head
