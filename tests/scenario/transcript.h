#pragma once

// Transcripts: what a newcomer reads before the code, and what the runner replays.
//
//   # comment
//   input line
//   input line
//   ----
//   what happened
//
//   next input
//   ----
//
// A block ends at an empty line. Blocks of one file share one world.

#include <functional>
#include <string>
#include <vector>

namespace argosy::scenario {

struct Transcript {
  struct Block {
    std::string comment;              // with its "# ", as written
    std::vector<std::string> input;
    std::string expected;             // lines, each ended by a newline
    int line = 0;                     // of its first input line
  };
  std::string header;                 // comments before the first block that are followed by an empty line
  std::vector<Block> blocks;
};

Transcript ParseTranscript(const std::string& text);
std::string PrintTranscript(const Transcript& transcript);

}  // namespace argosy::scenario
