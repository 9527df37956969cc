#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace argosy::wire {

// SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(std::string_view bytes);
  std::string Finish();      // 32 raw bytes; the object is used up

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string Sha256Hex(std::string_view bytes);
// Of a file's content, read in pieces.
absl::StatusOr<std::string> Sha256FileHex(const std::string& path);
// HMAC-SHA-256 (RFC 2104), 32 raw bytes.
std::string HmacSha256(std::string_view key, std::string_view message);

}  // namespace argosy::wire
