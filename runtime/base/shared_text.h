#pragma once

#include <array>
#include <compare>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace argosy {

// A text that many values hold and nobody changes: copying it costs a count, not an allocation. Addresses and function names, which
// come with every message, are of this type.
//
// Thread:   as a std::shared_ptr.
// Lifetime: the text lives while a copy does.
// Failure:  none.
class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text) : text_(text.empty() ? nullptr : std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}

  // Shares with an equal text that this thread asked for lately.
  static SharedText Interned(std::string_view text) {
    if (text.empty()) return {};
    thread_local std::array<std::shared_ptr<const std::string>, 64> recent;
    std::shared_ptr<const std::string>& slot = recent[std::hash<std::string_view>()(text) % recent.size()];
    if (!slot || *slot != text) slot = std::make_shared<const std::string>(text);
    SharedText shared;
    shared.text_ = slot;
    return shared;
  }

  const std::string& str() const {
    static const std::string kEmpty;
    return text_ ? *text_ : kEmpty;
  }
  operator const std::string&() const { return str(); }
  bool empty() const { return !text_; }
  size_t size() const { return str().size(); }
  void clear() { text_.reset(); }

  friend bool operator==(const SharedText& a, const SharedText& b) { return a.text_ == b.text_ || a.str() == b.str(); }
  friend bool operator==(const SharedText& a, const std::string& b) { return a.str() == b; }
  friend bool operator==(const SharedText& a, const char* b) { return a.str() == b; }

 private:
  std::shared_ptr<const std::string> text_;   // null: empty
};

}  // namespace argosy

template <>
struct fmt::formatter<argosy::SharedText> : fmt::formatter<std::string> {
  auto format(const argosy::SharedText& text, format_context& context) const { return formatter<std::string>::format(text.str(), context); }
};
