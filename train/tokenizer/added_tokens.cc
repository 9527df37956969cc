#include "train/tokenizer/added_tokens.h"

#include <algorithm>

#include "train/tokenizer/unicode.h"

namespace argosy::train {
namespace {

// Where the code point before `end` begins.
size_t PreviousBegin(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  size_t at = PreviousBegin(text, text.size());
  return unicode::IsWord(unicode::Next(text, at));
}

bool StartsWithWord(std::string_view text) {
  size_t at = 0;
  return !text.empty() && unicode::IsWord(unicode::Next(text, at));
}

size_t WithoutSpaceAtEnd(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = PreviousBegin(text, end), at = begin;
    if (!unicode::IsWhitespace(unicode::Next(text, at))) break;
    end = begin;
  }
  return end;
}

size_t SpaceAtStart(std::string_view text) {
  size_t size = 0;
  for (size_t at = 0; at < text.size(); size = at) {
    if (!unicode::IsWhitespace(unicode::Next(text, at))) break;
  }
  return size;
}

}  // namespace

void AddedTokenMatcher::Add(std::string pattern, AddedToken token) {
  if (pattern.empty()) return;
  size_t node = 0;
  for (char c : pattern) {
    auto [next, inserted] = nodes_[node].next.try_emplace(static_cast<unsigned char>(c), nodes_.size());
    node = next->second;
    if (inserted) nodes_.emplace_back();
  }
  begins_[static_cast<unsigned char>(pattern[0])] = true;
  nodes_[node].token = static_cast<int64_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

std::pair<int64_t, size_t> AddedTokenMatcher::LongestAt(std::string_view text, size_t at) const {
  std::pair<int64_t, size_t> longest{-1, 0};
  size_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    auto next = nodes_[node].next.find(static_cast<unsigned char>(text[i]));
    if (next == nodes_[node].next.end()) break;
    node = next->second;
    if (nodes_[node].token >= 0) longest = {nodes_[node].token, i + 1 - at};
  }
  return longest;
}

void AddedTokenMatcher::Split(Piece piece, std::vector<Piece>& out) const {
  std::string_view text = piece.text;
  size_t written = 0;
  auto write_text = [&](size_t end) {
    if (written < end) {
      out.push_back({.text = std::string(text.substr(written, end - written)), .at_start = piece.at_start && written == 0});
    }
  };
  for (size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    auto [index, length] = LongestAt(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = at, end = at + length;
    at = end;
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) continue;
    if (token.lstrip) begin = std::max(WithoutSpaceAtEnd(text.substr(0, begin)), written);
    if (token.rstrip) end += SpaceAtStart(text.substr(end));
    write_text(begin);
    out.push_back({.text = std::string(text.substr(begin, end - begin)), .token = token.id});
    written = end;
  }
  write_text(text.size());
}

}  // namespace argosy::train
