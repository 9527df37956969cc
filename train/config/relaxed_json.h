#pragma once

#include <algorithm>
#include <cstddef>
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

// How many single-character edits turn one into the other.
size_t EditDistance(std::string_view a, std::string_view b);

// "Did you mean": the candidate nearest to a name; none that is further than a third of its letters, or `edits_min`.
class NearestName {
 public:
  explicit NearestName(std::string_view name, size_t edits_min = 1) : distance_(std::max(edits_min, name.size() / 3) + 1) {}
  // Of two that are as near the first counts.
  void Consider(size_t distance, std::string_view candidate) {
    if (distance >= distance_) return;
    distance_ = distance;
    best_ = candidate;
  }
  const std::string& best() const { return best_; }   // empty: none

 private:
  size_t distance_;
  std::string best_;
};

}  // namespace argosy::train
