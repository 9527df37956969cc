#include "runtime/worker/value.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/base/status.h"

namespace argosy::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "packed values are little endian");

constexpr size_t kAlignment = 64;

size_t Align(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }
size_t TableBytes(size_t buffers) { return 16 + 16 * buffers; }

// One thread does not fill the memory's bandwidth, and takes each page fault of a fresh mapping by itself.
constexpr size_t kCopyPiece = size_t{4} << 20;
constexpr size_t kCopyThreadsMax = 4;
constexpr size_t kCopyOtherwise = size_t{1} << 20;

void Copy(std::byte* to, const std::byte* from, size_t size, const CopyBytes& copy) {
  auto copy_part = [&copy](std::byte* to, const std::byte* from, size_t size) {
    if (copy && size >= kCopyOtherwise) copy(to, from, size);
    else std::memcpy(to, from, size);
  };
  if (size < 2 * kCopyPiece) return copy_part(to, from, size);
  size_t threads = std::min({size / kCopyPiece, kCopyThreadsMax, size_t{std::thread::hardware_concurrency()}});
  std::vector<std::thread> helpers;
  helpers.reserve(threads);
  size_t copied = 0;   // by helpers, from the front
  size_t each = threads > 1 ? Align(size / threads) : 0;
  try {
    while (helpers.size() + 1 < threads) {
      helpers.emplace_back([&copy_part, to = to + copied, from = from + copied, each] { copy_part(to, from, each); });
      copied += each;
    }
  } catch (const std::system_error&) {
    // No more threads may be started: this one copies what they would have.
  }
  copy_part(to + copied, from + copied, size - copied);
  for (std::thread& helper : helpers) helper.join();
}

template <class U>
U ReadAt(std::string_view bytes, size_t at) {
  U value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

size_t PackedSize(std::string_view body, const std::vector<Buffer>& buffers) {
  if (buffers.empty()) return 4 + body.size();
  size_t size = TableBytes(buffers.size()) + body.size();
  for (const Buffer& buffer : buffers) size = Align(size) + buffer.size;
  return size;
}

void PackInto(std::span<std::byte> out, std::string_view body, const std::vector<Buffer>& buffers, const CopyBytes& copy) {
  ARGOSY_CHECK(out.size() == PackedSize(body, buffers));
  std::byte* begin = out.data();
  auto put = [&](size_t at, const void* data, size_t size) {
    if (size > 0) Copy(begin + at, static_cast<const std::byte*>(data), size, copy);
  };
  uint32_t count = static_cast<uint32_t>(buffers.size());
  put(0, &count, 4);
  if (count == 0) return put(4, body.data(), body.size());
  uint32_t zero = 0;
  uint64_t body_size = body.size();
  put(4, &zero, 4);
  put(8, &body_size, 8);
  size_t at = TableBytes(count);
  put(at, body.data(), body.size());
  at += body.size();
  for (size_t i = 0; i < count; ++i) {
    size_t aligned = Align(at);
    std::memset(begin + at, 0, aligned - at);
    uint64_t entry[2] = {aligned, buffers[i].size};
    put(16 + 16 * i, entry, 16);
    put(aligned, buffers[i].data, buffers[i].size);
    at = aligned + buffers[i].size;
  }
}

std::string Pack(std::string_view body, const std::vector<Buffer>& buffers) {
  std::string out(PackedSize(body, buffers), '\0');
  PackInto(std::as_writable_bytes(std::span(out)), body, buffers);
  return out;
}

absl::StatusOr<Unpacked> Unpack(std::string_view bytes, std::shared_ptr<const void> owner) {
  if (bytes.size() < 4) return InvalidArgument("a packed value of {} bytes", bytes.size());
  uint32_t count = ReadAt<uint32_t>(bytes, 0);
  if (count == 0) return Unpacked{bytes.substr(4), {}};
  if (bytes.size() < 16 || count > (bytes.size() - 16) / 16) {
    return InvalidArgument("a packed value of {} bytes says that it has {} buffers", bytes.size(), count);
  }
  size_t table = TableBytes(count);
  uint64_t body_size = ReadAt<uint64_t>(bytes, 8);
  if (body_size > bytes.size() - table) {
    return InvalidArgument("a packed value of {} bytes says that its body has {}", bytes.size(), body_size);
  }
  Unpacked unpacked{bytes.substr(table, body_size), {}};
  unpacked.buffers.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    uint64_t offset = ReadAt<uint64_t>(bytes, 16 + 16 * i);
    uint64_t size = ReadAt<uint64_t>(bytes, 24 + 16 * i);
    if (offset > bytes.size() || size > bytes.size() - offset) {
      return InvalidArgument("buffer {} of a packed value lies outside its {} bytes", i, bytes.size());
    }
    unpacked.buffers.push_back({bytes.data() + offset, size, owner});
  }
  return unpacked;
}

}  // namespace argosy::worker
