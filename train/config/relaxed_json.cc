#include "train/config/relaxed_json.h"

#include <algorithm>
#include <vector>

#include "spdlog/fmt/fmt.h"

namespace argosy::train {

std::string PlainJson(std::string_view text) {
  std::string plain(text);
  bool in_string = false;
  size_t comma = std::string::npos;  // the last one with only blanks and comments after it
  for (size_t i = 0; i < plain.size(); ++i) {
    const char c = plain[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
      continue;
    }
    const char next = i + 1 < plain.size() ? plain[i + 1] : '\0';
    if (c == '#' || (c == '/' && next == '/')) {
      while (i < plain.size() && plain[i] != '\n') plain[i++] = ' ';
      continue;
    }
    if (c == '/' && next == '*') {
      size_t end = plain.find("*/", i + 2);
      end = end == std::string::npos ? plain.size() : end + 2;
      for (; i < end; ++i) {
        if (plain[i] != '\n') plain[i] = ' ';
      }
      --i;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
    if ((c == '}' || c == ']') && comma != std::string::npos) plain[comma] = ' ';
    comma = c == ',' ? i : std::string::npos;
    in_string = c == '"';
  }
  return plain;
}

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
