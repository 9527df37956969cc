#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace argosy::train {

// Hjson (https://hjson.github.io/syntax.html), which DeepSpeed reads its files with, as JSON: comments (//, #, /* */), commas that are too many or
// missing, keys and texts without quotation marks, texts in single or in three of them, a file without outer braces.
struct PlainJson {
  std::string text;
  std::vector<size_t> places;   // where in the source each character of `text` stands, and the end
};
// What is not Hjson either becomes something that is not JSON, wrong at the same place.
PlainJson JsonFromHjson(std::string_view text);

// "line 3, column 14" of a byte of the text.
std::string PlaceInText(std::string_view text, size_t byte);

// How many single-character edits turn one into the other; for "did you mean".
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace argosy::train
