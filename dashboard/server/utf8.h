#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace argosy::dashboard {

// Turns the bytes of a log, which may be anything and come in pieces of any size, into valid UTF-8 text: a character that is
// cut by the end of a piece waits for the next one, a byte that belongs to none becomes U+FFFD.
class Utf8Stream {
 public:
  std::string Feed(std::string_view bytes);
  // What was still waiting, as U+FFFD.
  std::string Finish();

 private:
  std::string waiting_;  // at most 3 bytes
};

// Pieces of at most `size_max` bytes (at least 4) of valid UTF-8, cut between characters.
std::vector<std::string_view> SplitUtf8(std::string_view text, size_t size_max);

}  // namespace argosy::dashboard
