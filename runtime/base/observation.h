#pragma once

// What workers, nodes and the head say to each other about what goes on: printed lines, task events, questions of the head to a node. In
// gRPC messages these travel encoded (see Codec), so fields may be added at the end only.

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/id.h"

namespace argosy {

// ---- what workers print -----------------------------------------------------------------------------------------------------

// Whole lines of one worker's standard output or error.
struct PrintedLines {
  NodeId node;
  std::string node_name;
  WorkerId worker;
  uint32_t pid = 0;
  std::string name;        // of the function or the actor's class; empty: not known
  bool is_error = false;
  std::string text;        // ends with a newline
  uint64_t skipped = 0;    // bytes before `text` that are not shown: too much was printed
};

struct JobPrints {
  JobId job;
  std::vector<PrintedLines> lines;
};

// ---- what the head asks a node ----------------------------------------------------------------------------------------------

// Sends what the job's workers have printed so far; then the answer.
struct FlushPrintsQuestion { JobId job; };

using NodeQuestion = std::variant<FlushPrintsQuestion>;

struct EmptyAnswer {};

}  // namespace argosy
