#pragma once

// A small MessagePack reader and writer (https://github.com/msgpack/msgpack/blob/master/spec.md). The smallest form of each value is
// written; every form is read. No extension types.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace argosy::msgpack {

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  void Nil() { Byte(0xc0); }
  void Bool(bool value) { Byte(value ? 0xc3 : 0xc2); }
  void Unsigned(uint64_t value) {
    if (value < 0x80) Byte(static_cast<uint8_t>(value));
    else if (value <= 0xff) Tagged(0xcc, static_cast<uint8_t>(value));
    else if (value <= 0xffff) Tagged(0xcd, static_cast<uint16_t>(value));
    else if (value <= 0xffffffff) Tagged(0xce, static_cast<uint32_t>(value));
    else Tagged(0xcf, value);
  }
  void Signed(int64_t value) {
    if (value >= 0) return Unsigned(static_cast<uint64_t>(value));
    if (value >= -32) Byte(static_cast<uint8_t>(value));
    else if (value >= INT8_MIN) Tagged(0xd0, static_cast<uint8_t>(value));
    else if (value >= INT16_MIN) Tagged(0xd1, static_cast<uint16_t>(value));
    else if (value >= INT32_MIN) Tagged(0xd2, static_cast<uint32_t>(value));
    else Tagged(0xd3, static_cast<uint64_t>(value));
  }
  void Float(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); Tagged(0xca, bits); }
  void Double(double value) { uint64_t bits; std::memcpy(&bits, &value, 8); Tagged(0xcb, bits); }
  void String(std::string_view text) {
    size_t n = text.size();
    if (n < 32) Byte(static_cast<uint8_t>(0xa0 | n));
    else if (n <= 0xff) Tagged(0xd9, static_cast<uint8_t>(n));
    else if (n <= 0xffff) Tagged(0xda, static_cast<uint16_t>(n));
    else Tagged(0xdb, static_cast<uint32_t>(n));
    out_.append(text);
  }
  void Binary(std::string_view bytes) {
    size_t n = bytes.size();
    if (n <= 0xff) Tagged(0xc4, static_cast<uint8_t>(n));
    else if (n <= 0xffff) Tagged(0xc5, static_cast<uint16_t>(n));
    else Tagged(0xc6, static_cast<uint32_t>(n));
    out_.append(bytes);
  }
  // Followed by `n` values.
  void Array(size_t n) {
    if (n < 16) Byte(static_cast<uint8_t>(0x90 | n));
    else if (n <= 0xffff) Tagged(0xdc, static_cast<uint16_t>(n));
    else Tagged(0xdd, static_cast<uint32_t>(n));
  }
  // Followed by `n` pairs of key and value.
  void Map(size_t n) {
    if (n < 16) Byte(static_cast<uint8_t>(0x80 | n));
    else if (n <= 0xffff) Tagged(0xde, static_cast<uint16_t>(n));
    else Tagged(0xdf, static_cast<uint32_t>(n));
  }

 private:
  void Byte(uint8_t byte) { out_.push_back(static_cast<char>(byte)); }
  template <class U>
  void Tagged(uint8_t tag, U value) {
    char bytes[1 + sizeof(U)];
    bytes[0] = static_cast<char>(tag);
    for (size_t i = 0; i < sizeof(U); ++i) bytes[1 + i] = static_cast<char>(value >> (8 * (sizeof(U) - 1 - i)));
    out_.append(bytes, sizeof bytes);
  }

  std::string& out_;
};

enum class Kind { kNil, kBool, kInteger, kFloat, kString, kBinary, kArray, kMap, kInvalid };

// Reads values one after another. The first error sticks: later reads return zero values, and `status()` says what was wrong and
// where. A count is checked against the bytes left, so a hostile length cannot make the reader's caller allocate.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  Kind Peek() const;
  bool AtEnd() const { return at_ == end_; }
  size_t Offset() const { return static_cast<size_t>(at_ - begin_); }
  bool ok() const { return ok_; }
  absl::Status status() const;

  bool TryNil();          // takes a nil when it is next
  void Nil();
  bool Bool();
  uint64_t Unsigned();    // error when negative
  int64_t Signed();       // error above INT64_MAX
  double Double();        // also takes integers and 32-bit floats
  std::string_view String();   // points into the bytes
  std::string_view Binary();   // also takes strings; points into the bytes
  size_t Array();         // element count
  size_t Map();           // pair count
  void Skip();            // one whole value, nested up to 64 deep

  // Marks the input bad from here on; the first message stays.
  void Fail(std::string message);

 private:
  template <class U>
  U Big();
  uint8_t Tag();
  std::string_view Take(size_t n);
  bool Integer(uint8_t tag, uint64_t* magnitude, bool* negative);
  size_t Counted(size_t n, size_t bytes_each_min);
  void SkipNested(int depth);

  const char* begin_;
  const char* at_;
  const char* end_;
  bool ok_ = true;
  std::string error_;
};

}  // namespace argosy::msgpack
