#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace argosy {

// The cluster token: what every connection must know. Never printed.
class Token {
 public:
  Token() = default;                       // empty: authentication is off
  explicit Token(std::string text) : text_(std::move(text)) {}
  static Token Random();                   // 64 hex digits

  bool IsEmpty() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  // Takes the same time wherever the texts differ.
  bool Matches(std::string_view candidate) const;

 private:
  std::string text_;
};

// ~/.argosy/token of `home`.
std::string DefaultTokenPath(std::string_view home);
// Error when the file is missing, empty, or readable by others than its owner.
absl::StatusOr<Token> ReadToken(const std::string& path);
// Reads the file, or makes it (mode 0600) with a random token. Two processes that race get the same token.
absl::StatusOr<Token> ReadOrCreateToken(const std::string& path);

}  // namespace argosy
