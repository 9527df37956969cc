#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/tokenizer/piece.h"

namespace argosy::train {

// A token that is found in the text itself, before the model sees it.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the whitespace on its left with it
  bool rstrip = false;       // and on its right
  bool normalized = false;   // looked for in the normalized text, not in the raw one
  bool special = false;
};

// Finds added tokens: the longest at the leftmost place.
class AddedTokenMatcher {
 public:
  // `pattern` is what is looked for: the content, or the content after normalization.
  void Add(std::string pattern, AddedToken token);
  bool empty() const { return tokens_.empty(); }

  // Cuts `piece` into tokens and the text between them, and appends these to `out`.
  void Split(Piece piece, std::vector<Piece>& out) const;

 private:
  struct Node {
    std::map<unsigned char, size_t> next;
    int64_t token = -1;
  };
  // The longest pattern that begins at `at`: its token and length; -1 where none does.
  std::pair<int64_t, size_t> LongestAt(std::string_view text, size_t at) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<AddedToken> tokens_;
  bool begins_[256] = {};
};

}  // namespace argosy::train
