#include "train/tokenizer/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "runtime/base/status.h"

namespace argosy::train::unicode {
namespace {

// The length of the well-formed sequence at `at`; 0 and the length of the maximal ill-formed part in `bad` otherwise.
size_t WellFormed(std::string_view text, size_t at, size_t& bad) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint8_t first = byte(at);
  bad = 1;
  if (first < 0x80) return 1;
  size_t length = 0;
  uint8_t low = 0x80, high = 0xbf;  // bounds of the second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return 0;
    bad = i + 1;
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

struct Alphabet {
  std::array<char32_t, 256> code_point;
  std::array<int, 0x144> byte;
  constexpr Alphabet() : code_point(), byte() {
    for (int& b : byte) b = -1;
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      code_point[b] = printable ? static_cast<char32_t>(b) : next++;
      byte[code_point[b]] = b;
    }
  }
};
constexpr Alphabet kAlphabet;

// Of category P*, but not in Unicode 8.
constexpr std::pair<char32_t, char32_t> kNewerPunctuation[] = {
    {0x61d, 0x61d}, {0x9fd, 0x9fd}, {0xa76, 0xa76}, {0xc77, 0xc77}, {0xc84, 0xc84}, {0x1b7d, 0x1b7e}, {0x2e43,
    0x2e4f}, {0x2e52, 0x2e5d}, {0x10ead, 0x10ead}, {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x1144b, 0x1144f},
    {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9}, {0x1183b, 0x1183b}, {0x11944,
    0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46}, {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11c41, 0x11c45},
    {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8}, {0x11fff, 0x11fff}, {0x11b00, 0x11b09}, {0x11f43, 0x11f4f}, {0x12ff1, 0x12ff2}, {0x16e97, 0x16e9a}, {0x16fe2,
    0x16fe2}, {0x1e95e, 0x1e95f}};

}  // namespace

char32_t Next(std::string_view text, size_t& at) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint8_t first = byte(at);
  char32_t c;
  if (first < 0x80) {
    c = first;
    at += 1;
  } else if (first < 0xe0) {
    c = (first & 0x1fu) << 6 | (byte(at + 1) & 0x3fu);
    at += 2;
  } else if (first < 0xf0) {
    c = (first & 0x0fu) << 12 | (byte(at + 1) & 0x3fu) << 6 | (byte(at + 2) & 0x3fu);
    at += 3;
  } else {
    c = (first & 0x07u) << 18 | (byte(at + 1) & 0x3fu) << 12 | (byte(at + 2) & 0x3fu) << 6 | (byte(at + 3) & 0x3fu);
    at += 4;
  }
  return c;
}

void Append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

bool IsAscii(std::string_view text) {
  for (char c : text) {
    if (static_cast<uint8_t>(c) >= 0x80) return false;
  }
  return true;
}

bool IsValid(std::string_view text) {
  size_t bad = 0;
  for (size_t at = 0; at < text.size();) {
    size_t length = WellFormed(text, at, bad);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string ToValid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t bad = 0;
  for (size_t at = 0; at < text.size();) {
    if (size_t length = WellFormed(text, at, bad)) {
      out.append(text, at, length);
      at += length;
    } else {
      out += "\xef\xbf\xbd";
      at += bad;
    }
  }
  return out;
}

bool IsWhitespace(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  if (c == 0x166d || c == 0x111c9) return true;  // were punctuation then
  for (auto [first, last] : kNewerPunctuation) {
    if (c >= first && c <= last) return false;
  }
  utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsWord(char32_t c) {
  // Circled and squared letters are alphabetic, though of category So.
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
      (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c || c == 0x200d) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

std::string Normalize(std::string_view text, NormalForm form) {
  if (IsAscii(text)) return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* normal = nullptr;
  utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &normal,
                                       static_cast<utf8proc_option_t>(options));
  std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(normal, &std::free);
  ARGOSY_CHECK(size >= 0, "utf8proc on valid UTF-8: {}", utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(normal), static_cast<size_t>(size));
}

std::string Lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    char32_t c = Next(text, at);
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    } else if (c == 0x130) {
      out += "i\xcc\x87";  // the one letter whose small form has two code points
    } else {
      Append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

char32_t ByteToCodePoint(uint8_t byte) { return kAlphabet.code_point[byte]; }

int CodePointToByte(char32_t c) { return c < kAlphabet.byte.size() ? kAlphabet.byte[c] : -1; }

std::string BytesToAlphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char b : bytes) Append(out, kAlphabet.code_point[static_cast<uint8_t>(b)]);
  return out;
}

}  // namespace argosy::train::unicode
