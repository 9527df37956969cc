#pragma once

#include <cstdint>
#include <string>

namespace argosy::train {

// A stretch of the text on its way to the model: already a token, or text that the next step may change and cut.
struct Piece {
  std::string text;
  int32_t token = -1;
  bool at_start = false;  // its first byte comes from the first byte of the whole text
};

}  // namespace argosy::train
