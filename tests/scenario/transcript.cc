#include "tests/scenario/transcript.h"

#include <sstream>

namespace argosy::scenario {

Transcript ParseTranscript(const std::string& text) {
  Transcript transcript;
  Transcript::Block block;
  bool in_output = false;
  int number = 0;
  auto end_block = [&] {
    if (block.input.empty()) transcript.header += block.comment.empty() ? "" : block.comment + "\n";
    else transcript.blocks.push_back(block);
    block = {};
    in_output = false;
  };
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) {
      end_block();
    } else if (line == "----") {
      in_output = true;
    } else if (in_output) {
      block.expected += line + "\n";
    } else if (line[0] == '#') {
      block.comment += line + "\n";
    } else {
      if (block.input.empty()) block.line = number;
      block.input.push_back(line);
    }
  }
  end_block();
  return transcript;
}

std::string PrintTranscript(const Transcript& transcript) {
  std::string text = transcript.header;
  for (size_t i = 0; i < transcript.blocks.size(); ++i) {
    const Transcript::Block& block = transcript.blocks[i];
    if (i > 0) text += "\n";
    text += block.comment;
    for (const std::string& line : block.input) text += line + "\n";
    text += "----\n" + block.expected;
  }
  return text;
}

}  // namespace argosy::scenario
