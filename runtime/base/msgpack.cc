#include "runtime/base/msgpack.h"

#include "runtime/base/status.h"

namespace argosy::msgpack {
namespace {

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kNil: return "nil";
    case Kind::kBool: return "a bool";
    case Kind::kInteger: return "an integer";
    case Kind::kFloat: return "a float";
    case Kind::kString: return "a string";
    case Kind::kBinary: return "binary";
    case Kind::kArray: return "an array";
    case Kind::kMap: return "a map";
    case Kind::kInvalid: return "the end or an unknown tag";
  }
  return "?";
}

Kind KindOf(uint8_t tag) {
  if (tag < 0x80 || tag >= 0xe0 || (tag >= 0xcc && tag <= 0xd3)) return Kind::kInteger;
  if (tag < 0x90 || tag == 0xde || tag == 0xdf) return Kind::kMap;
  if (tag < 0xa0 || tag == 0xdc || tag == 0xdd) return Kind::kArray;
  if (tag < 0xc0 || (tag >= 0xd9 && tag <= 0xdb)) return Kind::kString;
  if (tag == 0xc0) return Kind::kNil;
  if (tag == 0xc2 || tag == 0xc3) return Kind::kBool;
  if (tag >= 0xc4 && tag <= 0xc6) return Kind::kBinary;
  if (tag == 0xca || tag == 0xcb) return Kind::kFloat;
  return Kind::kInvalid;
}

}  // namespace

Kind Reader::Peek() const {
  if (!ok_ || at_ == end_) return Kind::kInvalid;
  return KindOf(static_cast<uint8_t>(*at_));
}

absl::Status Reader::status() const {
  return ok_ ? absl::OkStatus() : InvalidArgument("bad msgpack: {}", error_);
}

void Reader::Fail(std::string message) {
  if (!ok_) return;
  ok_ = false;
  error_ = fmt::format("{} at byte {}", message, Offset());
  at_ = end_;
}

template <class U>
U Reader::Big() {
  std::string_view bytes = Take(sizeof(U));
  if (!ok_) return 0;
  U value = 0;
  for (unsigned char c : bytes) value = static_cast<U>((static_cast<uint64_t>(value) << 8) | c);
  return value;
}

uint8_t Reader::Tag() {
  std::string_view byte = Take(1);
  return byte.empty() ? 0xc1 : static_cast<uint8_t>(byte[0]);
}

std::string_view Reader::Take(size_t n) {
  if (!ok_) return {};
  if (static_cast<size_t>(end_ - at_) < n) {
    Fail(fmt::format("{} more bytes wanted, {} left", n, end_ - at_));
    return {};
  }
  std::string_view taken(at_, n);
  at_ += n;
  return taken;
}

bool Reader::TryNil() {
  if (Peek() != Kind::kNil) return false;
  ++at_;
  return true;
}

void Reader::Nil() {
  Kind kind = Peek();
  if (kind != Kind::kNil) Fail(fmt::format("want nil, found {}", KindName(kind)));
  else ++at_;
}

bool Reader::Bool() {
  Kind kind = Peek();
  if (kind != Kind::kBool) {
    Fail(fmt::format("want a bool, found {}", KindName(kind)));
    return false;
  }
  return Tag() == 0xc3;
}

bool Reader::Integer(uint8_t tag, uint64_t* magnitude, bool* negative) {
  *negative = false;
  int64_t value = 0;
  if (tag < 0x80) { *magnitude = tag; return true; }
  switch (tag) {
    case 0xcc: *magnitude = Big<uint8_t>(); return ok_;
    case 0xcd: *magnitude = Big<uint16_t>(); return ok_;
    case 0xce: *magnitude = Big<uint32_t>(); return ok_;
    case 0xcf: *magnitude = Big<uint64_t>(); return ok_;
    case 0xd0: value = static_cast<int8_t>(Big<uint8_t>()); break;
    case 0xd1: value = static_cast<int16_t>(Big<uint16_t>()); break;
    case 0xd2: value = static_cast<int32_t>(Big<uint32_t>()); break;
    case 0xd3: value = static_cast<int64_t>(Big<uint64_t>()); break;
    default: value = static_cast<int8_t>(tag); break;
  }
  *negative = value < 0;
  *magnitude = static_cast<uint64_t>(value);
  return ok_;
}

uint64_t Reader::Unsigned() {
  Kind kind = Peek();
  if (kind != Kind::kInteger) {
    Fail(fmt::format("want an integer, found {}", KindName(kind)));
    return 0;
  }
  uint64_t magnitude = 0;
  bool negative = false;
  Integer(Tag(), &magnitude, &negative);
  if (negative) {
    Fail("want an integer of at least 0, found a negative one");
    return 0;
  }
  return ok_ ? magnitude : 0;
}

int64_t Reader::Signed() {
  Kind kind = Peek();
  if (kind != Kind::kInteger) {
    Fail(fmt::format("want an integer, found {}", KindName(kind)));
    return 0;
  }
  uint64_t magnitude = 0;
  bool negative = false;
  Integer(Tag(), &magnitude, &negative);
  if (!negative && magnitude > static_cast<uint64_t>(INT64_MAX)) {
    Fail("the integer is above 2^63 - 1");
    return 0;
  }
  return ok_ ? static_cast<int64_t>(magnitude) : 0;
}

double Reader::Double() {
  Kind kind = Peek();
  if (kind == Kind::kInteger) {
    uint64_t magnitude = 0;
    bool negative = false;
    Integer(Tag(), &magnitude, &negative);
    return negative ? static_cast<double>(static_cast<int64_t>(magnitude)) : static_cast<double>(magnitude);
  }
  if (kind != Kind::kFloat) {
    Fail(fmt::format("want a number, found {}", KindName(kind)));
    return 0;
  }
  if (Tag() == 0xca) {
    uint32_t bits = Big<uint32_t>();
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  uint64_t bits = Big<uint64_t>();
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

std::string_view Reader::String() {
  Kind kind = Peek();
  if (kind != Kind::kString) {
    Fail(fmt::format("want a string, found {}", KindName(kind)));
    return {};
  }
  uint8_t tag = Tag();
  if (tag < 0xc0) return Take(tag & 31);
  if (tag == 0xd9) return Take(Big<uint8_t>());
  if (tag == 0xda) return Take(Big<uint16_t>());
  return Take(Big<uint32_t>());
}

std::string_view Reader::Binary() {
  Kind kind = Peek();
  if (kind == Kind::kString) return String();
  if (kind != Kind::kBinary) {
    Fail(fmt::format("want binary, found {}", KindName(kind)));
    return {};
  }
  uint8_t tag = Tag();
  if (tag == 0xc4) return Take(Big<uint8_t>());
  if (tag == 0xc5) return Take(Big<uint16_t>());
  return Take(Big<uint32_t>());
}

size_t Reader::Counted(size_t n, size_t bytes_each_min) {
  if (ok_ && n * bytes_each_min > static_cast<size_t>(end_ - at_)) {
    Fail(fmt::format("{} elements announced, {} bytes left", n, end_ - at_));
  }
  return ok_ ? n : 0;
}

size_t Reader::Array() {
  Kind kind = Peek();
  if (kind != Kind::kArray) {
    Fail(fmt::format("want an array, found {}", KindName(kind)));
    return 0;
  }
  uint8_t tag = Tag();
  size_t n = tag < 0xa0 ? tag & 15 : tag == 0xdc ? Big<uint16_t>() : Big<uint32_t>();
  return Counted(n, 1);
}

size_t Reader::Map() {
  Kind kind = Peek();
  if (kind != Kind::kMap) {
    Fail(fmt::format("want a map, found {}", KindName(kind)));
    return 0;
  }
  uint8_t tag = Tag();
  size_t n = tag < 0x90 ? tag & 15 : tag == 0xde ? Big<uint16_t>() : Big<uint32_t>();
  return Counted(n, 2);
}

void Reader::Skip() { SkipNested(0); }

void Reader::SkipNested(int depth) {
  if (depth > 64) return Fail("nested more than 64 deep");
  uint64_t magnitude;
  bool negative;
  switch (Peek()) {
    case Kind::kNil: Nil(); break;
    case Kind::kBool: Bool(); break;
    case Kind::kInteger: Integer(Tag(), &magnitude, &negative); break;
    case Kind::kFloat: Double(); break;
    case Kind::kString: String(); break;
    case Kind::kBinary: Binary(); break;
    case Kind::kArray:
      for (size_t n = Array(); n > 0 && ok_; --n) SkipNested(depth + 1);
      break;
    case Kind::kMap:
      for (size_t n = 2 * Map(); n > 0 && ok_; --n) SkipNested(depth + 1);
      break;
    case Kind::kInvalid: Fail("want a value, found the end or an unknown tag"); break;
  }
}

}  // namespace argosy::msgpack
