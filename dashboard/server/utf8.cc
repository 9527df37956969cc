#include "dashboard/server/utf8.h"

#include <algorithm>

namespace argosy::dashboard {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Scan { kWhole, kCut, kBad };

// Looks at the character that begins `text` (not empty). Sets how many bytes it has; for kBad, how many to replace at once:
// the longest beginning of a character, as the Unicode standard recommends (table 3-7 gives the ranges).
Scan ScanCharacter(std::string_view text, size_t& size) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(0);
  size = 1;
  if (lead < 0x80) return Scan::kWhole;
  size_t length;
  unsigned char low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return Scan::kBad;
  }
  for (; size < length; ++size) {
    if (size == text.size()) return Scan::kCut;
    if (byte(size) < low || byte(size) > high) return Scan::kBad;
    low = 0x80;
    high = 0xBF;
  }
  return Scan::kWhole;
}

}  // namespace

std::string Utf8Stream::Feed(std::string_view bytes) {
  std::string joined;
  if (!waiting_.empty()) {
    joined = waiting_ + std::string(bytes);
    waiting_.clear();
    bytes = joined;
  }
  std::string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    size_t size = 0;
    Scan scan = ScanCharacter(bytes.substr(i), size);
    if (scan == Scan::kCut) {
      waiting_ = std::string(bytes.substr(i));
      break;
    }
    text += scan == Scan::kWhole ? bytes.substr(i, size) : kReplacement;
    i += size;
  }
  return text;
}

std::string Utf8Stream::Finish() {
  std::string text = waiting_.empty() ? std::string() : std::string(kReplacement);
  waiting_.clear();
  return text;
}

std::vector<std::string_view> SplitUtf8(std::string_view text, size_t size_max) {
  size_max = std::max<size_t>(size_max, 4);
  std::vector<std::string_view> pieces;
  while (text.size() > size_max) {
    size_t cut = size_max;
    while (cut > size_max - 4 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    pieces.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  if (!text.empty()) pieces.push_back(text);
  return pieces;
}

}  // namespace argosy::dashboard
