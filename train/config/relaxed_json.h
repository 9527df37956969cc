#pragma once

#include <string>
#include <string_view>

namespace argosy::train {

// JSON with comments (//, #, /* */) and trailing commas, as people write in configs, made plain: both become spaces, so that every
// other character keeps its place and an error's line and column are those of the text.
std::string PlainJson(std::string_view text);

// "line 3, column 14" of a byte of the text.
std::string PlaceInText(std::string_view text, size_t byte);

// How many single-character edits turn one into the other; for "did you mean".
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace argosy::train
