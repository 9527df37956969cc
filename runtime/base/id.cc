#include "runtime/base/id.h"

#include <sys/random.h>

#include "runtime/base/status.h"

namespace argosy {
namespace internal {

void FillRandom(unsigned char* out, size_t size) {
  // One system call a kilobyte, not one an id: ids are made on hot paths.
  thread_local std::array<unsigned char, 1024> pool;
  thread_local size_t left = 0;
  ARGOSY_CHECK(size <= pool.size());
  if (left < size) {
    size_t got = 0;
    while (got < pool.size()) {
      ssize_t n = getrandom(pool.data() + got, pool.size() - got, 0);
      if (n > 0) got += static_cast<size_t>(n);
    }
    left = pool.size();
  }
  std::memcpy(out, pool.data() + pool.size() - left, size);
  left -= size;
}

std::string ToHex(const unsigned char* bytes, size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(size * 2, '0');
  for (size_t i = 0; i < size; ++i) {
    hex[2 * i] = kDigits[bytes[i] >> 4];
    hex[2 * i + 1] = kDigits[bytes[i] & 15];
  }
  return hex;
}

bool FromHex(std::string_view hex, unsigned char* out, size_t size) {
  if (hex.size() != size * 2) return false;
  auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  for (size_t i = 0; i < size; ++i) {
    int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return true;
}

}  // namespace internal

ObjectId ReturnId(TaskId task, uint32_t index) {
  std::string bytes(task.Bytes());
  uint32_t last;
  std::memcpy(&last, bytes.data() + 12, 4);
  last += index + 1;
  std::memcpy(bytes.data() + 12, &last, 4);
  return *ObjectId::FromBytes(bytes);
}

}  // namespace argosy
