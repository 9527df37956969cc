#include "train/config/relaxed_json.h"

#include <algorithm>
#include <vector>

#include "spdlog/fmt/fmt.h"

namespace argosy::train {

namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsPunctuation(char c) { return c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':'; }

// true, false, null or a number of JSON.
bool IsLiteral(std::string_view text) {
  if (text == "true" || text == "false" || text == "null") return true;
  size_t at = 0;
  auto digits = [&] {
    size_t begin = at;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    return at - begin;
  };
  if (at < text.size() && text[at] == '-') ++at;
  const bool zero = at < text.size() && text[at] == '0';
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (digits() == 0) return false;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (digits() == 0) return false;
  }
  return at == text.size();
}

class Converter {
 public:
  explicit Converter(std::string_view text) : text_(text) {}

  PlainJson Run() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
    SkipSpace();
    if (at_ < text_.size() && text_[at_] != '{' && text_[at_] != '[' && StartsWithKey()) Members(/*braces=*/false, 0);
    else if (at_ < text_.size()) Value(0);
    SkipSpace();
    Rest();
    out_.places.push_back(text_.size());
    return std::move(out_);
  }

 private:
  // Deeper is not converted: the parser says what it thinks of it.
  static constexpr int kDepthMax = 200;

  void Put(char c) {
    out_.text += c;
    out_.places.push_back(std::min(at_, text_.size()));
  }
  void Take() {   // the next character as it is
    Put(text_[at_]);
    ++at_;
  }
  void Rest() {
    while (at_ < text_.size()) Take();
  }
  char Next(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool AtComment() const { return Next() == '#' || (Next() == '/' && (Next(1) == '/' || Next(1) == '*')); }

  void SkipSpace() {
    while (at_ < text_.size()) {
      if (IsSpace(Next())) {
        ++at_;
      } else if (Next() == '/' && Next(1) == '*') {
        size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else if (AtComment()) {
        while (at_ < text_.size() && Next() != '\n') ++at_;
      } else {
        return;
      }
    }
  }

  // Whether a key and a colon come next: the members of an object without braces.
  bool StartsWithKey() const {
    size_t at = at_;
    if (Next() == '"' || Next() == '\'') {
      for (++at; at < text_.size() && text_[at] != text_[at_]; ++at) at += text_[at] == '\\';
      ++at;
    } else {
      while (at < text_.size() && !IsSpace(text_[at]) && !IsPunctuation(text_[at])) ++at;
    }
    while (at < text_.size() && IsSpace(text_[at])) ++at;
    return at < text_.size() && text_[at] == ':';
  }

  void Escaped(char c) {
    switch (c) {
      case '"': Put('\\'); Put('"'); return;
      case '\\': Put('\\'); Put('\\'); return;
      case '\n': Put('\\'); Put('n'); return;
      case '\t': Put('\\'); Put('t'); return;
      case '\r': Put('\\'); Put('r'); return;
      default: Put(c);
    }
  }

  void Quoted() {
    const char quote = Next();
    ++at_;
    Put('"');
    while (at_ < text_.size() && Next() != quote) {
      if (Next() == '\\' && Next(1) == '\'') {
        ++at_;
        Take();
      } else if (Next() == '\\' && at_ + 1 < text_.size()) {
        Take();
        Take();
      } else if (Next() == '"') {
        Put('\\');
        Take();
      } else {
        Take();
      }
    }
    if (at_ >= text_.size()) return;   // without an end
    Put('"');
    ++at_;
  }

  // Lines between three quotation marks, without what they are indented by and the last line's end.
  void Lines() {
    size_t start_of_line = text_.rfind('\n', at_);
    const size_t indent = at_ - (start_of_line == std::string_view::npos ? 0 : start_of_line + 1);
    const size_t end = text_.find("'''", at_ + 3);
    if (end == std::string_view::npos) {
      Rest();
      return;
    }
    at_ += 3;
    size_t blank = at_;
    while (blank < end && IsSpace(text_[blank]) && text_[blank] != '\n') ++blank;
    if (blank < end && text_[blank] == '\n') at_ = blank + 1;
    size_t last = end > at_ && text_[end - 1] == '\n' ? end - 1 : end;
    if (const size_t newline = text_.rfind('\n', end - 1); last == end && newline != std::string_view::npos && newline >= at_) {
      // A last line of blanks is the closing marks' indentation.
      bool blanks = true;
      for (size_t i = newline + 1; i < end; ++i) blanks = blanks && IsSpace(text_[i]);
      if (blanks) last = newline;
    }
    Put('"');
    bool at_begin = text_[at_ - 1] == '\n';
    for (size_t skipped = 0; at_ < last; ++at_) {
      if (at_begin && skipped < indent && IsSpace(Next()) && Next() != '\n') {
        ++skipped;
        continue;
      }
      at_begin = Next() == '\n';
      if (at_begin) skipped = 0;
      if (Next() != '\r') Escaped(Next());
    }
    at_ = end;
    Put('"');
    at_ += 3;
  }

  void Value(int depth) {
    const char c = Next();
    if (c == '{' && depth < kDepthMax) {
      Members(/*braces=*/true, depth + 1);
    } else if (c == '[' && depth < kDepthMax) {
      Elements(depth + 1);
    } else if (text_.substr(at_).starts_with("'''")) {
      Lines();
    } else if (c == '"' || c == '\'') {
      Quoted();
    } else if (IsPunctuation(c)) {
      Rest();
    } else {
      Unquoted();
    }
  }

  // A literal up to what ends it; else a text up to the end of the line.
  void Unquoted() {
    size_t end = at_;
    auto so_far = [&] {
      std::string_view text = text_.substr(at_, end - at_);
      while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
      return text;
    };
    for (; end < text_.size() && text_[end] != '\n'; ++end) {
      const char c = text_[end];
      const bool comment = c == '#' || (c == '/' && end + 1 < text_.size() && (text_[end + 1] == '/' || text_[end + 1] == '*'));
      if ((c == ',' || c == '}' || c == ']' || comment) && IsLiteral(so_far())) break;
    }
    const std::string_view text = so_far();
    const bool literal = IsLiteral(text);
    if (!literal) Put('"');
    for (size_t i = 0; i < text.size(); ++i, ++at_) {
      if (literal) Put(Next());
      else Escaped(Next());
    }
    if (!literal) Put('"');
    at_ = end;
  }

  // A key and its colon; false when there is none.
  bool Key() {
    if (Next() == '"' || Next() == '\'') {
      Quoted();
    } else {
      if (IsPunctuation(Next())) return false;
      Put('"');
      while (at_ < text_.size() && !IsSpace(Next()) && !IsPunctuation(Next())) {
        Escaped(Next());
        ++at_;
      }
      Put('"');
    }
    SkipSpace();
    if (Next() != ':') return false;
    Take();
    SkipSpace();
    return true;
  }

  void Members(bool braces, int depth) {
    Put('{');
    if (braces) ++at_;
    for (bool first = true;; first = false) {
      SkipSpace();
      if (Next() == ',' && !first) {
        ++at_;
        SkipSpace();
      }
      if (at_ >= text_.size()) {
        if (!braces) Put('}');
        return;
      }
      if (braces && Next() == '}') {
        Take();
        return;
      }
      if (!first) Put(',');
      if (!Key() || at_ >= text_.size()) {
        Rest();
        return;
      }
      Value(depth);
    }
  }

  void Elements(int depth) {
    Take();
    for (bool first = true;; first = false) {
      SkipSpace();
      if (Next() == ',' && !first) {
        ++at_;
        SkipSpace();
      }
      if (at_ >= text_.size()) return;
      if (Next() == ']') {
        Take();
        return;
      }
      if (!first) Put(',');
      Value(depth);
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  PlainJson out_;
};

}  // namespace

PlainJson JsonFromHjson(std::string_view text) { return Converter(text).Run(); }

std::string PlaceInText(std::string_view text, size_t byte) {
  byte = std::min(byte, text.size());
  size_t line = 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(byte), '\n'));
  size_t start = byte == 0 ? std::string_view::npos : text.rfind('\n', byte - 1);
  size_t column = start == std::string_view::npos ? byte : byte - start - 1;
  return fmt::format("line {}, column {}", line, std::max<size_t>(1, column));
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace argosy::train
